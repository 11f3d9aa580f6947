"""Payments that take two seconds."""

import time

from counting import CountingHandler, serve


class Payments(CountingHandler):
    def do_POST(self):
        self.body()
        number = self.execute()
        time.sleep(2)
        self.answer(201, {"payment": number})


serve(Payments)
