"""Prints how long the first event takes: `first_event.py SERVICE ONCEGATE`, two URLs. OpenAI's client asks each in turn, over and over.

Exits with 1 if the first event comes only after the service has sent the last one. The times depend on whatever else runs on the machine.
"""

import statistics
import sys
import time
import uuid

import openai

ROUNDS = 15
PROMPT = "three short words"


def connect(url, **protocol):
    return openai.OpenAI(base_url=f"{url}/v1", api_key="sk-recipe", http_client=openai.DefaultHttpxClient(**protocol))


def measure(row, client):
    """Asks in the protocol that the row names. Returns the milliseconds from the request to the first event, and from the sending of each event to its arrival."""
    messages = [{"role": "user", "content": PROMPT}]
    fields = {"Idempotency-Key": str(uuid.uuid4())}
    begun, events = time.time(), []
    stream = client.chat.completions.create(model="echo", messages=messages, stream=True, extra_headers=fields)
    assert row.endswith(stream.response.http_version), row
    for chunk in stream:
        events.append((chunk.sent, time.time()))
    first, last_sent = events[0][1], events[-1][0]
    if first >= last_sent:
        sys.exit(f"{row}: the first event came after the last one was sent")
    return (first - begun) * 1000, [(came - sent) * 1000 for sent, came in events]


service, oncegate = sys.argv[1:]
rows = {
    "the service alone, HTTP/1.1": connect(service),
    "through Oncegate, HTTP/1.1": connect(oncegate),
    "through Oncegate, HTTP/2": connect(oncegate, http1=False, http2=True),
}
for name, client in rows.items():
    measure(name, client)  # Not counted: the first request loads modules.
measured = {name: [] for name in rows}
for _ in range(ROUNDS):
    for name, client in rows.items():
        measured[name].append(measure(name, client))
fastest = {name: min(first for first, _ in results) for name, results in measured.items()}
added = {name: first - next(iter(fastest.values())) for name, first in fastest.items()}
print(f"| {ROUNDS} requests each | first event, median | fastest | beside the service | an event's way, median |\n|---|--:|--:|--:|--:|")
for name, results in measured.items():
    median = statistics.median(first for first, _ in results)
    way = statistics.median(way for _, ways in results for way in ways)
    print(f"| {name} | {median:.1f} ms | {fastest[name]:.1f} ms | {added[name]:+.1f} ms | {way:.1f} ms |")
