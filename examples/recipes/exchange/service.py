"""An exchange as Binance's: it verifies the signature and the time of each order, and buys as often as it is asked."""

import hashlib
import hmac
import time
import urllib.parse

from counting import CountingHandler, serve

SECRETS = {"alice": b"secret of alice"}


class Exchange(CountingHandler):
    def do_POST(self):
        signed, _, signature = self.body().rpartition(b"&signature=")
        order = dict(urllib.parse.parse_qsl(signed.decode()))
        expected = hmac.new(SECRETS[self.headers["X-MBX-APIKEY"]], signed, hashlib.sha256).hexdigest()
        if not hmac.compare_digest(expected.encode(), signature):
            return self.answer(401, {"code": -1022, "msg": "Signature for this request is not valid."})
        if abs(time.time() * 1000 - int(order["timestamp"])) > int(order["recvWindow"]):
            return self.answer(400, {"code": -1021, "msg": "Timestamp for this request is outside of the recvWindow."})
        self.answer(
            200,
            {
                "symbol": order["symbol"],
                "orderId": self.execute(),
                "clientOrderId": order["newClientOrderId"],
                "transactTime": int(order["timestamp"]),
                "side": order["side"],
                "type": order["type"],
                "origQty": order["quantity"],
                "executedQty": order["quantity"],
                "status": "FILLED",
            },
        )


serve(Exchange)
