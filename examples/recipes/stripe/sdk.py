"""Stripe's own SDK against the URL in the argument: its retry after a time-out, and its errors."""

import sys

import stripe

client = stripe.StripeClient(
    "sk_test_recipe",
    base_addresses={"api": sys.argv[1]},
    max_network_retries=2,
    http_client=stripe.RequestsClient(timeout=1),
)

# The SDK gives up after one second, the charge takes two. The SDK's own retry has the same key.
charge = client.v1.charges.create({"amount": 700, "currency": "eur", "description": "slow"})
assert charge.last_response.headers["oncegate-status"] == "replayed", charge.last_response.headers
print(charge.id)

# The SDK raises Oncegate's own errors as Stripe's.
options = {"idempotency_key": "sdk-1"}
client.v1.charges.create({"amount": 800, "currency": "eur"}, options)
try:
    client.v1.charges.create({"amount": 900, "currency": "eur"}, options)
    sys.exit("another amount under the same key was accepted")
except stripe.IdempotencyError as error:
    assert error.http_status == 400 and error.json_body["error"]["code"] == "key_reused", error

# The SDK does not repeat a request whose outcome nobody knows: one attempt, one error.
try:
    client.v1.charges.create({"amount": 900, "currency": "eur", "description": "lost"}, {"idempotency_key": "sdk-2"})
    sys.exit("a lost charge was answered")
except stripe.APIError as error:
    assert error.http_status == 502 and error.headers["oncegate-status"] == "unknown", error
