"""Asks for 12 images, each under a key of its own: `client.py URL` prints how many requests it has sent and how many images it has got.

Four take longer than the edge allows. `requests` submits each again when its connection breaks, three times at most.
"""

import concurrent.futures
import sys
import uuid

import requests
import urllib3

RETRIES = 3
FAST, SLOW = 0.5, 2.9  # 87 s, scaled


def generate(seconds):
    """Returns the number of requests sent, and whether an image came."""
    session = requests.Session()
    retries = urllib3.Retry(RETRIES, allowed_methods=None, backoff_factor=0.03)
    session.mount("http://", requests.adapters.HTTPAdapter(max_retries=retries))
    fields = {"Idempotency-Key": str(uuid.uuid4()), "Authorization": "Bearer alice"}
    try:
        response = session.post(f"{sys.argv[1]}/v1/images", json={"seconds": seconds}, headers=fields, timeout=20)
    except requests.ConnectionError:
        return 1 + RETRIES, False
    return 1 + len(response.raw.retries.history), "image" in response.json()


with concurrent.futures.ThreadPoolExecutor(12) as pool:
    results = list(pool.map(generate, [FAST] * 8 + [SLOW] * 4))
print(sum(sent for sent, _ in results), sum(came for _, came in results))
