"""grpcio's own client: `client.py URL KEY REPORT` exports until it has all rows, and prints a line for each try."""

import json
import sys
import time

import grpc

url, key, report = sys.argv[1:]
# The policy repeats a call until the head of its response is there. A stream that breaks later is repeated by the application.
retries = {
    "maxAttempts": 5,
    "initialBackoff": "0.1s",
    "maxBackoff": "1s",
    "backoffMultiplier": 2,
    "retryableStatusCodes": ["UNAVAILABLE"],
}
policy = {"methodConfig": [{"name": [{"service": "reports.Reports"}], "retryPolicy": retries}]}
channel = grpc.insecure_channel(url.removeprefix("http://"), (("grpc.service_config", json.dumps(policy)),))
metadata = [("authorization", "Bearer alice"), ("idempotency-key", key)]


def tell(*words):
    print(*filter(None, words), flush=True)


for _ in range(3):
    call = channel.unary_stream("/reports.Reports/Export")(report.encode(), metadata=metadata, timeout=20)
    rows, begun, sent, numbers = 0, None, 0, set()
    try:
        for row in call:
            _, number, _, sent = row.decode().split()
            rows, begun, sent, numbers = rows + 1, begun or time.time(), float(sent), numbers | {number}
    except grpc.RpcError as error:
        status = dict(call.initial_metadata() or ()).get("oncegate-status")
        tell(status, f"{rows} rows", error.code().name, dict(call.trailing_metadata() or ()).get("oncegate-status"))
        if error.code() != grpc.StatusCode.UNAVAILABLE:
            break
        continue
    head, trailers = dict(call.initial_metadata()), dict(call.trailing_metadata())
    assert numbers == {trailers["x-number"]}, (numbers, trailers)
    # Read before the last row was sent: the rows were not held back.
    live = begun < sent and "live"
    tell(head.get("oncegate-status"), live, f"{rows} rows", f"number {trailers['x-number']}", trailers.get("oncegate-status"))
    break
