"""Webhooks of GitHub and Stripe: verifies the signature, and counts the events that it handled."""

import hashlib
import hmac
import json

from counting import CountingHandler, serve

SECRET = b"whsec_recipe"


def signature(text):
    return hmac.new(SECRET, text, hashlib.sha256).hexdigest()


class Webhooks(CountingHandler):
    def is_signed(self, body):
        if self.path == "/webhooks/github":
            sent, wanted = self.headers.get("X-Hub-Signature-256", ""), f"sha256={signature(body)}"
        else:
            parts = dict(part.partition("=")[::2] for part in self.headers.get("Stripe-Signature", "").split(","))
            sent, wanted = parts.get("v1", ""), signature(parts.get("t", "").encode() + b"." + body)
        return hmac.compare_digest(sent, wanted)

    def do_POST(self):
        body = self.body()
        if not self.is_signed(body):
            # 401 and not 400: Oncegate stores a 400, and the real event would get it as well.
            return self.answer(401, {"error": "the signature is wrong"})
        if json.loads(body).get("fails"):
            return self.answer(500, {"error": "nothing was done"})
        self.answer(200, {"handled": self.execute()})


serve(Webhooks)
