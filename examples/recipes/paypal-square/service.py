"""Orders and payments. It gets the key where the client wrote it."""

import json

from counting import CountingHandler, serve


class Payments(CountingHandler):
    def do_POST(self):
        key = json.loads(self.body()).get("idempotency_key", self.headers.get("PayPal-Request-Id"))
        self.answer(201, {"id": self.execute(), "key": key})


serve(Payments)
