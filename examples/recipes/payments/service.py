"""Payments that can be found again by the id of the key's record: the first 64 digits of `Oncegate-Reservation`.

`then=die` charges and closes the connection without an answer. `first=die` closes the first connection before the charge.
"""

import json

from counting import CountingHandler, serve

payments = {}
died = set()


class Payments(CountingHandler):
    def do_POST(self):
        order = json.loads(self.body())
        record = self.headers["Oncegate-Reservation"][:64]
        if order.get("first") == "die" and record not in died:
            died.add(record)
            self.close_connection = True
            return
        payments[record] = {"payment": self.execute(), "amount": order["amount"]}
        if order.get("then") == "die":
            self.close_connection = True
            return
        self.answer(201, payments[record])

    def do_GET(self):
        """Answers with the response that the request itself would have got; 404 only if nothing was charged and nothing will be."""
        record = self.path.removeprefix("/v1/payments/by-record/")
        if record in payments:
            self.answer(201, payments[record])
        elif record in died:
            self.answer(404, {"error": "no payment of this record"})
        else:
            super().do_GET()


serve(Payments)
