"""A business of the Universal Commerce Protocol: creates checkouts, and completes each with a charge that takes half a second.

`GET /executions` answers the number of charges, and `GET /checkouts` that of checkouts.
"""

import json
import time

from counting import CountingHandler, serve

PRICE = 1000
checkouts = {}


class Business(CountingHandler):
    def do_GET(self):
        self.answer(200, len(checkouts)) if self.path == "/checkouts" else super().do_GET()

    def do_POST(self):
        request = json.loads(self.body())
        match self.path.strip("/").split("/"):
            case ["checkout-sessions"]:
                with self.lock:
                    name = f"checkout-{len(checkouts) + 1}"
                    checkouts[name] = self.checkout(name, request)
                self.answer(201, checkouts[name])
            case ["checkout-sessions", name, "complete"] if name in checkouts:
                checkout = checkouts[name]
                if checkout["status"] == "completed":
                    return self.answer(409, {"message": f"{name} is completed"})
                number = self.execute()
                time.sleep(0.5)
                order = {"id": f"order-{number}", "permalink_url": f"https://shop.example/orders/{number}"}
                checkout |= {"status": "completed", "order": order}
                self.answer(200, checkout)
            case _:
                self.answer(404, {})

    def checkout(self, name, request):
        lines, total = [], 0
        for number, line in enumerate(request["line_items"], 1):
            price = PRICE * line["quantity"]
            total += price
            item = {"id": line["item"]["id"], "title": line["item"]["id"], "price": PRICE}
            totals = [{"type": "subtotal", "amount": price}, {"type": "total", "amount": price}]
            lines.append({"id": f"line-{number}", "item": item, "quantity": line["quantity"], "totals": totals})
        return {
            "ucp": {"version": "2026-01-11", "capabilities": [{"name": "dev.ucp.shopping.checkout", "version": "2026-01-11"}]},
            "id": name,
            "status": "ready_for_complete",
            "currency": request["currency"],
            "line_items": lines,
            "totals": [{"type": "subtotal", "amount": total}, {"type": "total", "amount": total}],
            "links": [],
            "payment": {"handlers": []},
        }


serve(Business)
