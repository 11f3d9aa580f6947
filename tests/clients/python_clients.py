"""Creates customers through one of Python's HTTP clients, with the client's own retries.

Usage: python_clients.py CLIENT URL OPERATIONS
Prints a line of JSON for each operation: the customer's id, or the error that the client has raised.
"""

import asyncio
import json
import sys
import uuid

CLIENT, URL, OPERATIONS = sys.argv[1], sys.argv[2], int(sys.argv[3])
TOKEN = "sk_test_clients"
# Longer than an instance's lease: a key that a killed instance was executing becomes unknown then.
TRIES = 12
RETRIED = [409, 502, 503, 504]
# It cannot tell an unknown outcome from an attempt in flight, and would wait as long as the Retry-After of each says.
URLLIB3_RETRIES = {
    "total": TRIES,
    "allowed_methods": None,
    "status_forcelist": RETRIED,
    "backoff_factor": 0.2,
    "backoff_max": 1,
    "respect_retry_after_header": False,
    "raise_on_status": False,
}


def report(name, result=None, error=None):
    status = getattr(error, "http_status", None)
    line = {"operation": name, "id": result, "error": error and type(error).__name__, "status": status, "text": error and str(error)}
    print(json.dumps(line), flush=True)


class Refused(Exception):
    """A response that the client did not retry, or not any more."""

    def __init__(self, status, text):
        super().__init__(text)
        self.http_status = status


def is_retried(status, text):
    return status in RETRIED and "outcome-unknown" not in text


def headers():
    return {"Authorization": f"Bearer {TOKEN}", "Idempotency-Key": str(uuid.uuid4())}


def read(status, text):
    if status != 200:
        raise Refused(status, text)
    return json.loads(text)["id"]


def run(create):
    for number in range(OPERATIONS):
        name = f"{CLIENT}-{number}"
        try:
            report(name, create(name))
        except Exception as error:  # Whatever a client raises is its result.
            report(name, error=error)


def stripe_sdk():
    import stripe

    client = stripe.StripeClient(TOKEN, base_addresses={"api": URL}, max_network_retries=TRIES)
    run(lambda name: client.v1.customers.create({"description": name}).id)

    # The SDK must raise its own error for each refusal. `refused-` operations are not counted.
    options = {"idempotency_key": f"reused-{uuid.uuid4()}"}
    client.v1.customers.create({"description": "python-reused"}, options)
    for name, call in {
        "refused-reused": lambda: client.v1.customers.create({"description": "another body"}, options),
        "refused-unknown": lambda: client.raw_request("post", "/v1/broken", amount=1),
    }.items():
        try:
            report(name, str(call()))
        except Exception as error:
            report(name, error=error)


def urllib3_client():
    import urllib3

    pool = urllib3.PoolManager(retries=urllib3.Retry(**URLLIB3_RETRIES))

    def create(name):
        answer = pool.request("POST", f"{URL}/v1/customers", fields={"description": name}, headers=headers(), encode_multipart=False)
        return read(answer.status, answer.data)

    run(create)


def requests_client():
    import requests
    from requests.adapters import HTTPAdapter
    from urllib3 import Retry

    session = requests.Session()
    session.mount("http://", HTTPAdapter(max_retries=Retry(**URLLIB3_RETRIES)))

    def create(name):
        answer = session.post(f"{URL}/v1/customers", data={"description": name}, headers=headers())
        return read(answer.status_code, answer.text)

    run(create)


def httpx_client():
    """httpx retries only connections that were not made: the loop is the user's."""
    import time

    import httpx

    with httpx.Client(timeout=30) as client:

        def create(name):
            fields = headers()
            for attempt in range(TRIES):
                try:
                    answer = client.post(f"{URL}/v1/customers", data={"description": name}, headers=fields)
                    if not is_retried(answer.status_code, answer.text):
                        break
                    time.sleep(float(answer.headers.get("retry-after", 0.1)))
                except httpx.TransportError:
                    if attempt == TRIES - 1:
                        raise
                    time.sleep(0.05)
            return read(answer.status_code, answer.text)

        run(create)


def aiohttp_client():
    """aiohttp retries only idempotent methods: the loop is the user's. Eight operations run at once."""
    import aiohttp

    async def create(session, name):
        fields = headers()
        for attempt in range(TRIES):
            try:
                async with session.post(f"{URL}/v1/customers", data={"description": name}, headers=fields) as answer:
                    text = await answer.text()
                    if not is_retried(answer.status, text):
                        return read(answer.status, text)
                    pause = float(answer.headers.get("retry-after", 0.1))
            except aiohttp.ClientError:
                if attempt == TRIES - 1:
                    raise
                pause = 0.05
            await asyncio.sleep(pause)
        return read(answer.status, text)

    async def one(session, limit, name):
        async with limit:
            try:
                report(name, await create(session, name))
            except Exception as error:
                report(name, error=error)

    async def main():
        limit = asyncio.Semaphore(8)
        async with aiohttp.ClientSession() as session:
            await asyncio.gather(*(one(session, limit, f"{CLIENT}-{number}") for number in range(OPERATIONS)))

    asyncio.run(main())


{
    "stripe-python": stripe_sdk,
    "urllib3": urllib3_client,
    "requests": requests_client,
    "httpx": httpx_client,
    "aiohttp": aiohttp_client,
}[CLIENT]()
