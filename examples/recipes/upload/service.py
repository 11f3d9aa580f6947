"""Uploads: it counts them, and returns the length of the body."""

from counting import CountingHandler, serve


class Uploads(CountingHandler):
    def do_POST(self):
        length = len(self.body())
        self.answer(201, {"file": self.execute(), "bytes": length})


serve(Uploads)
