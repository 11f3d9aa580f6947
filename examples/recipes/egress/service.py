"""Doubles of the vendors: `service.py stripe`, `openai` or `supplier`. Each counts what it has executed."""

import json
import sys
import threading
import time
import urllib.parse

from counting import CountingHandler, serve


class Stripe(CountingHandler):
    """Charges. A key counts for 24 hours."""

    keys = {}
    keys_lock = threading.Lock()

    def do_POST(self):
        key, body, now = self.headers["Idempotency-Key"], self.body(), time.time()
        with self.keys_lock:
            kept = self.keys.get(key)
            if kept and now - kept["since"] < 24 * 3600:
                return self.answer_again(kept, body)
            kept = self.keys[key] = {"since": now, "body": body, "charge": None}
        form = dict(urllib.parse.parse_qsl(body.decode()))
        charge = {"id": f"ch_{self.execute()}", "object": "charge", "amount": int(form["amount"])}
        # The answer comes after the charge.
        time.sleep(2 if form["metadata[order_id]"] == "order-8" else 0)
        kept["charge"] = charge
        self.answer(200, charge)

    def answer_again(self, kept, body):
        if kept["body"] != body:
            return self.answer(400, {"error": {"type": "idempotency_error", "message": "other parameters"}})
        if not kept["charge"]:
            return self.answer(409, {"error": {"type": "invalid_request_error", "code": "idempotency_key_in_use"}})
        self.answer(200, kept["charge"], [("Idempotent-Replayed", "true")])

    def do_GET(self):
        charges = {f"/v1/charges/{kept['charge']['id']}": kept["charge"] for kept in self.keys.values() if kept["charge"]}
        self.answer(200, charges[self.path]) if self.path in charges else super().do_GET()


class OpenAI(CountingHandler):
    """Chat completions, without keys."""

    def do_POST(self):
        request = json.loads(self.body())
        message = {"role": "assistant", "content": "hello"}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        completion = {"object": "chat.completion", "created": 0, "model": request["model"], "choices": choices}
        self.answer(200, {"id": f"chatcmpl-{self.execute()}", **completion})


class Supplier(CountingHandler):
    """Orders, without keys. `GET /search?order=` answers the first order of that name."""

    orders = {}

    def do_POST(self):
        order_id = json.loads(self.body())["order_id"]
        order = {"number": self.execute(), "order_id": order_id}
        self.orders.setdefault(order_id, order)
        self.answer(201, order)

    def do_GET(self):
        path, _, query = self.path.partition("?order=")
        if path != "/search":
            return super().do_GET()
        order = self.orders.get(urllib.parse.unquote(query))
        self.answer(200, order) if order else self.answer(404, {})


serve({"stripe": Stripe, "openai": OpenAI, "supplier": Supplier}[sys.argv[1]])
