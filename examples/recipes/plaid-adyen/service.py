"""Transfers and payments. It gets the key where the client wrote it."""

import json

from counting import CountingHandler, serve


class Payments(CountingHandler):
    def do_POST(self):
        key = json.loads(self.body()).get("client_transfer_id", self.headers.get("Idempotency-Key"))
        self.answer(200, {"id": self.execute(), "key": key})


serve(Payments)
