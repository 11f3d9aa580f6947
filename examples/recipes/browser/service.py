"""Orders for pages of https://shop.example: it answers preflights, and marks its own answers as readable for these pages."""

from counting import CountingHandler, serve

GRANT = [
    ("Access-Control-Allow-Origin", "https://shop.example"),
    ("Access-Control-Allow-Credentials", "true"),
    ("Vary", "Origin"),
]
PREFLIGHT = [
    ("Access-Control-Allow-Methods", "POST"),
    ("Access-Control-Allow-Headers", "Content-Type, Idempotency-Key"),
    ("Access-Control-Max-Age", "600"),
]
# The fields that a page's script may read on first answers.
EXPOSED = [("Access-Control-Expose-Headers", "Oncegate-Status")]


class Orders(CountingHandler):
    def grant(self):
        return GRANT if self.headers.get("Origin") == "https://shop.example" else []

    def do_OPTIONS(self):
        self.answer(200, {}, [*self.grant(), *PREFLIGHT])

    def do_POST(self):
        self.body()
        self.answer(201, {"order": self.execute()}, [*self.grant(), *EXPOSED])


serve(Orders)
