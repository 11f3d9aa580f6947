"""Prints how long the first event takes: `first_event.py SERVICE ONCEGATE`, two URLs. OpenAI's client asks each in turn, over and over.

Exits with 1 if the first event comes more than 5 ms later through Oncegate, over HTTP/1.1 or over HTTP/2. Compared are the fastest requests
of each, because whatever else runs on the machine makes single ones slower.
"""

import statistics
import sys
import time
import uuid

import openai

# A busy machine needs more of them until each row has had a quiet moment.
ROUNDS, MOST_ROUNDS = 15, 60
PROMPT = "three short words"
LIMIT_MS = 5


def connect(url, **protocol):
    return openai.OpenAI(base_url=f"{url}/v1", api_key="sk-recipe", http_client=openai.DefaultHttpxClient(**protocol))


def measure(row, client):
    """Asks in the protocol that the row names. Returns the milliseconds from the request to the first event, and from the sending of each event to its arrival."""
    begun, first, ways = time.time(), None, []
    messages = [{"role": "user", "content": PROMPT}]
    fields = {"Idempotency-Key": str(uuid.uuid4())}
    stream = client.chat.completions.create(model="echo", messages=messages, stream=True, extra_headers=fields)
    assert row.endswith(stream.response.http_version), row
    for chunk in stream:
        now = time.time()
        first = first or (now - begun) * 1000
        ways.append((now - chunk.sent) * 1000)
    return first, ways


service, oncegate = sys.argv[1:]
rows = {
    "the service alone, HTTP/1.1": connect(service),
    "through Oncegate, HTTP/1.1": connect(oncegate),
    "through Oncegate, HTTP/2": connect(oncegate, http1=False, http2=True),
}
for name, client in rows.items():
    measure(name, client)  # Not counted: the first request loads modules.
measured = {name: [] for name in rows}
added = {}
for rounds in range(1, MOST_ROUNDS + 1):
    for name, client in rows.items():
        measured[name].append(measure(name, client))
    fastest = {name: min(first for first, _ in results) for name, results in measured.items()}
    added = {name: first - next(iter(fastest.values())) for name, first in fastest.items()}
    if rounds >= ROUNDS and max(added.values()) <= LIMIT_MS:
        break
print(f"| {rounds} requests each | first event, median | fastest | beside the service | an event's way, median |\n|---|--:|--:|--:|--:|")
for name, results in measured.items():
    median = statistics.median(first for first, _ in results)
    way = statistics.median(way for _, ways in results for way in ways)
    print(f"| {name} | {median:.1f} ms | {fastest[name]:.1f} ms | {added[name]:+.1f} ms | {way:.1f} ms |")
if max(added.values()) > LIMIT_MS:
    sys.exit(f"the first event comes more than {LIMIT_MS} ms later")
