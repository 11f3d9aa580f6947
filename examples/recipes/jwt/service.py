"""Payments of the caller whom the token names. A real service verifies the token itself as well."""

import base64
import json

from counting import CountingHandler, serve


class Payments(CountingHandler):
    def do_POST(self):
        self.body()
        claims = self.headers["Authorization"].split(".")[1]
        caller = json.loads(base64.urlsafe_b64decode(claims + "==="))["sub"]
        self.answer(201, {"payment": self.execute(), "of": caller})


serve(Payments)
