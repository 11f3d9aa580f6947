"""Orders, payments and images. It gets the key where the client wrote it."""

import json

from counting import CountingHandler, serve


class Payments(CountingHandler):
    def do_POST(self):
        if self.path == "/v2/catalog/images":
            length = len(self.body())
            return self.answer(200, {"image": {"type": "IMAGE", "id": f"image-{self.execute()}", "version": length}})
        key = json.loads(self.body()).get("idempotency_key", self.headers.get("PayPal-Request-Id"))
        self.answer(201, {"id": self.execute(), "key": key})


serve(Payments)
