"""Sends one payment to $CONFORM_URL through one of Python's HTTP clients, with the client's own retries.

Usage: conform_client.py CLIENT. The exit code is 0 if the payment is known to be done.
"""

import asyncio
import os
import sys
import time
import uuid

URL, KEY, NUMBER = os.environ["CONFORM_URL"], str(uuid.uuid4()), int(os.environ["CONFORM_OPERATION"])
HEADERS = {"Authorization": "Bearer alice", "Idempotency-Key": KEY}
ORDER = {"amount": NUMBER}
RETRIED = [409, 429, 502, 503, 504]
TRIES = 3


def requests_with_urllib3():
    import requests
    from urllib3 import Retry

    retries = Retry(total=TRIES, allowed_methods=None, status_forcelist=RETRIED, backoff_factor=0.2)
    session = requests.Session()
    session.mount("http://", requests.adapters.HTTPAdapter(max_retries=retries))
    session.post(f"{URL}/pay", json=ORDER, headers=HEADERS, timeout=20).raise_for_status()


def requests_with_a_time_in_the_body():
    """Wrong on purpose: each try makes its body anew."""
    import requests

    for _ in range(TRIES):
        try:
            answer = requests.post(f"{URL}/pay", json=ORDER | {"sent": time.time_ns()}, headers=HEADERS, timeout=20)
            if answer.status_code not in RETRIED:
                return answer.raise_for_status()
            time.sleep(float(answer.headers.get("Retry-After", 0.2)))
        except requests.ConnectionError:
            time.sleep(0.2)
    sys.exit(1)


def httpx_with_tenacity():
    import httpx
    import tenacity

    def wait(state):
        error = state.outcome.exception()
        fields = error.response.headers if isinstance(error, httpx.HTTPStatusError) else {}
        return float(fields.get("retry-after", 0.2))

    def is_retried(error):
        if not isinstance(error, httpx.HTTPStatusError):
            return isinstance(error, httpx.TransportError)
        return error.response.headers.get("oncegate-status") != "unknown" and error.response.status_code in RETRIED

    @tenacity.retry(retry=tenacity.retry_if_exception(is_retried), wait=wait, stop=tenacity.stop_after_attempt(TRIES + 1), reraise=True)
    def pay():
        httpx.post(f"{URL}/pay", json=ORDER, headers=HEADERS, timeout=20).raise_for_status()

    pay()


def aiohttp_retry():
    import aiohttp
    import aiohttp_retry as retry

    async def pay():
        # Without `exceptions`, a lost connection is not retried.
        options = retry.ExponentialRetry(
            attempts=TRIES + 1, start_timeout=0.2, statuses=set(RETRIED), exceptions={aiohttp.ClientError}, retry_all_server_errors=False
        )
        async with retry.RetryClient(retry_options=options) as client:
            async with client.post(f"{URL}/pay", json=ORDER, headers=HEADERS) as answer:
                answer.raise_for_status()
                await answer.json()

    asyncio.run(pay())


def stripe_sdk():
    import stripe

    client = stripe.StripeClient("sk_test_conform", base_addresses={"api": URL}, max_network_retries=TRIES)
    client.v1.charges.create({"amount": NUMBER, "currency": "eur"})


def openai_sdk():
    """Its client sends no key by itself."""
    import openai

    client = openai.OpenAI(api_key="sk-conform", base_url=f"{URL}/v1", max_retries=TRIES, timeout=20)
    client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": f"order {NUMBER}"}], extra_headers={"Idempotency-Key": KEY}
    )


{
    "requests": requests_with_urllib3,
    "changed-body": requests_with_a_time_in_the_body,
    "httpx": httpx_with_tenacity,
    "aiohttp-retry": aiohttp_retry,
    "stripe": stripe_sdk,
    "openai": openai_sdk,
}[sys.argv[1]]()
