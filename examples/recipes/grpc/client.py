"""Unary calls through the address in the argument, with grpcio's own client and its retry policy."""

import concurrent.futures
import json
import sys

import grpc

# Each attempt of a call has the same metadata, so the same key. UNAVAILABLE is the one status to name.
retries = {
    "maxAttempts": 5,
    "initialBackoff": "0.1s",
    "maxBackoff": "1s",
    "backoffMultiplier": 2,
    "retryableStatusCodes": ["UNAVAILABLE"],
}
policy = {"methodConfig": [{"name": [{"service": "payments.Payments"}], "retryPolicy": retries}]}
once = grpc.insecure_channel(sys.argv[1], (("grpc.enable_retries", 0),))
retrying = grpc.insecure_channel(sys.argv[1], (("grpc.service_config", json.dumps(policy)),))


def call(channel, method, message=b"", key=None):
    """Returns the message, or the error's code and details; and all metadata of the answer."""
    fields = [("authorization", "Bearer alice"), *([("idempotency-key", key)] if key else [])]
    try:
        answer, done = channel.unary_unary(f"/payments.Payments/{method}").with_call(message, metadata=fields, timeout=20)
    except grpc.RpcError as error:
        answer, done = f"{error.code().name} {error.details()}", error
    return answer, dict((*(done.initial_metadata() or ()), *(done.trailing_metadata() or ())))


def charge(message, key, channel=once):
    return call(channel, "Charge", message, key)


def expect(answer, text, status=None, **metadata):
    got = {name.replace("_", "-"): answer[1].get(name.replace("_", "-")) for name in metadata}
    wanted = {name.replace("_", "-"): value for name, value in metadata.items()}
    assert text in str(answer[0]) and answer[1].get("oncegate-status") == status and got == wanted, answer
    print(answer[0], status)


# A result and an error of the service are replayed with their trailers.
expect(charge(b"100 EUR", "order-1"), "charged 1", "executed", x_number="1")
expect(charge(b"100 EUR", "order-1"), "charged 1", "replayed", x_number="1")
expect(charge(b"too much", "order-2"), "FAILED_PRECONDITION no funds: 100 % of 2 €", "executed", x_number="2")
expect(charge(b"too much", "order-2"), "FAILED_PRECONDITION no funds: 100 % of 2 €", "replayed", x_number="2")

# Oncegate's refusals are errors of the call, and tell a retry policy that they are final.
expect(charge(b"200 EUR", "order-1"), "FAILED_PRECONDITION key-reused: ", "key-reused", grpc_retry_pushback_ms="-1")
expect(charge(b"100 EUR", None), "INVALID_ARGUMENT key-missing: ", "rejected", grpc_retry_pushback_ms="-1")
expect(call(once, "Executions"), "2")

# UNAVAILABLE counts as not executed, and a retry is the next attempt. The client's policy sends it by itself.
expect(charge(b"busy", "order-3"), "UNAVAILABLE busy 3", "released")
expect(charge(b"busy", "order-3"), "charged 4", "executed")
expect(charge(b"busy", "order-4", retrying), "charged 6", "executed")
expect(call(once, "Executions"), "6")

# The service may decide otherwise for one answer.
expect(charge(b"no account", "order-5"), "NOT_FOUND no account 7", "released")
expect(charge(b"no account", "order-5"), "NOT_FOUND no account 8", "released")

# An exception leaves the outcome unknown: no retry executes it again, whatever the client's policy is.
expect(charge(b"bug", "order-6", retrying), "UNKNOWN Exception calling application: bug 9", "unknown")
expect(charge(b"bug", "order-6", retrying), "UNKNOWN outcome-unknown: ", "unknown", grpc_retry_pushback_ms="-1")
expect(call(once, "Executions"), "9")

# A duplicate is asked to come again, and the policy does so until the first attempt has ended.
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    duplicates = [pool.submit(charge, b"slow", "order-7", retrying) for _ in range(4)]
    statuses = sorted(str((duplicate.result()[0], duplicate.result()[1]["oncegate-status"])) for duplicate in duplicates)
assert statuses == [str((b"charged 10", "executed")), *[str((b"charged 10", "replayed"))] * 3], statuses
expect(call(once, "Executions"), "10")
