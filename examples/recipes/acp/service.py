"""Checkout sessions. The note `slow` takes two seconds."""

import json
import time

from counting import CountingHandler, serve


class Checkout(CountingHandler):
    def do_POST(self):
        session = json.loads(self.body())
        number = self.execute()
        if session.get("note") == "slow":
            time.sleep(2)
        self.answer(201, {"id": f"checkout_{number}", "path": self.path})


serve(Checkout)
