"""ccxt: `client.py URL ORDER AMOUNT` buys at the market, and prints Oncegate's status and the order, or the error."""

import sys

import ccxt

url, order_id, amount = sys.argv[1:]
exchange = ccxt.binance({"apiKey": "alice", "secret": "secret of alice"})
exchange.urls["api"]["private"] = f"{url}/api/v3"
# ccxt signs the request anew for each of its tries.
exchange.options |= {"maxRetriesOnFailure": 2, "maxRetriesOnFailureDelay": 100}
market = {"id": "BTCUSDT", "symbol": "BTC/USDT", "base": "BTC", "quote": "USDT", "type": "spot", "spot": True}
exchange.set_markets([exchange.safe_market_structure({**market, "info": {"orderTypes": ["MARKET"]}})])
try:
    order = exchange.create_order("BTC/USDT", "market", "buy", float(amount), None, {"newClientOrderId": order_id})
    result = f"order {order['id']} of {order['amount']}"
# ccxt takes the `code` of each error for a number, as Binance's is. So Oncegate's errors end the call, and ccxt does not repeat it.
except (ccxt.BaseError, ValueError) as error:
    result = type(error).__name__
status = exchange.last_response_headers.get("oncegate-status")
print(*filter(None, (status, result)))
