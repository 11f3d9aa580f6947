"""A worker that orders: `order.py URL` sends twelve orders, and each again until it has an answer. Prints the answers of each."""

import sys
import time

import requests

waiting = {f"order-{number}": [] for number in range(1, 13)}
# In production the host is that of the URL.
fields = {"Authorization": "Bearer recipe", "Host": "supplier.egress.internal"}
until = time.monotonic() + 30
while waiting and time.monotonic() < until:
    for order, answers in list(waiting.items()):
        try:
            answer = requests.post(f"{sys.argv[1]}/orders", json={"order_id": order}, headers=fields, timeout=30)
        except requests.RequestException:
            answers.append("lost")
            continue
        answers.append(answer.headers.get("oncegate-status") or "new")
        if answer.ok:
            print(order, *waiting.pop(order))
    time.sleep(1)
