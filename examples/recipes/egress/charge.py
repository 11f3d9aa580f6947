"""A worker with Stripe's SDK: `charge.py URL DONE KEYS` charges twelve orders, and dies at the first error.

The file DONE has the orders that are charged. A worker that starts again goes on with the next one. KEYS is `drawn` for the SDK's own
keys, which differ with each call, or `order` for the order's name. Prints the `Oncegate-Status` of each answer.
"""

import pathlib
import sys

import requests
import stripe

url, done, keys = sys.argv[1:]
# In production the host is that of the URL.
session = requests.Session()
session.headers["Host"] = "stripe.egress.internal"
http = stripe.RequestsClient(session=session)
client = stripe.StripeClient("sk_test_recipe", base_addresses={"api": url}, http_client=http, max_network_retries=0)
done = pathlib.Path(done)
charged = done.read_text().split() if done.exists() else []

for order in [f"order-{number}" for number in range(1, 13)][len(charged) :]:
    options = {"idempotency_key": order} if keys == "order" else {}
    try:
        charge = client.v1.charges.create({"amount": 700, "currency": "eur", "metadata": {"order_id": order}}, options)
    except stripe.StripeError as error:
        sys.exit(f"{order} {type(error).__name__}: {error}")
    assert client.v1.charges.retrieve(charge.id).amount == charge.amount
    print(order, charge.id, charge.last_response.headers.get("oncegate-status"), flush=True)
    with done.open("a") as file:
        print(order, file=file)
