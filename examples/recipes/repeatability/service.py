"""Mails. It gets both fields of the request."""

from counting import CountingHandler, serve


class Mails(CountingHandler):
    def do_POST(self):
        self.body()
        self.answer(202, {"id": self.execute(), "first_sent": self.headers["Repeatability-First-Sent"]})


serve(Mails)
