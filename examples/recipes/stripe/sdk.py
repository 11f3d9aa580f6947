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

# The SDK raises an API error for Oncegate's own refusals: their body is a problem document, and not Stripe's `error`.
options = {"idempotency_key": "sdk-1"}
client.v1.charges.create({"amount": 800, "currency": "eur"}, options)
try:
    client.v1.charges.create({"amount": 900, "currency": "eur"}, options)
    sys.exit("another amount under the same key was accepted")
except stripe.APIError as error:
    assert error.http_status == 422 and "key-reused" in error.http_body, error
