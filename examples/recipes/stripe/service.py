"""Charges. `description=slow` takes two seconds, `broken` charges and answers 500, `lost` charges and closes the connection."""

import time
import urllib.parse

from counting import CountingHandler, serve


class Charges(CountingHandler):
    def do_POST(self):
        form = dict(urllib.parse.parse_qsl(self.body().decode()))
        number = self.execute()
        if form.get("description") == "slow":
            time.sleep(2)
        if form.get("description") == "broken":
            return self.answer(500, {"error": {"type": "api_error", "message": "charged, then failed"}})
        if form.get("description") == "lost":
            self.close_connection = True
            return
        self.answer(200, {"id": f"ch_{number}", "object": "charge", "amount": int(form["amount"])})


serve(Charges)
