"""The client of langchain-ucp: `client.py URL KEY [TOKEN]` creates a checkout and completes it, and prints a line for each try.

A step whose connection breaks is tried again with the step's key.
"""

import asyncio
import sys

import httpx
from langchain_ucp import UCPClient, UCPError
from ucp_sdk.models.schemas.shopping.checkout_create_req import CheckoutCreateRequest

url, key, *token = sys.argv[1:]
client = UCPClient(url, timeout=20)
client.http_client.headers["Authorization"] = "Bearer alice"


async def step(name, call):
    """Makes the call until it has an answer, and returns the checkout in it."""
    for _ in range(3):
        try:
            return await call(idempotency_key=f"{key}-{name}")
        except httpx.TransportError:
            print(f"{name}: lost", flush=True)
        except UCPError as error:
            sys.exit(f"{name}: {error.status_code} {(error.details or {}).get('code', error)}")
    sys.exit(f"{name}: given up")


async def main():
    wanted = CheckoutCreateRequest(
        currency="USD",
        line_items=[{"item": {"id": "roses"}, "quantity": 1}],
        payment={"instruments": []},
    )
    checkout = await step("create", lambda **keyed: client.create_checkout(wanted, **keyed))
    print(f"create: {checkout.id}", flush=True)
    payment = {"handler_id": "card", "type": "card", "credential": {"token": token[0] if token else "success"}}
    checkout = await step("complete", lambda **keyed: client.complete_checkout(checkout.id, payment, **keyed))
    print(f"complete: {checkout.order.id}", flush=True)
    await client.close()


asyncio.run(main())
