"""Unary calls through the address in the argument, with grpcio's own client."""

import sys

import grpc

channel = grpc.insecure_channel(sys.argv[1])


def call(method, message=b"", **metadata):
    """Returns the message, or the error's code and details; and the fields of the answer. An error may have them in its trailers."""
    fields = tuple((name.replace("_", "-"), value) for name, value in metadata.items())
    try:
        answer, done = channel.unary_unary(f"/payments.Payments/{method}").with_call(message, metadata=fields, timeout=20)
        return answer, dict(done.initial_metadata())
    except grpc.RpcError as error:
        fields = (*(error.initial_metadata() or ()), *(error.trailing_metadata() or ()))
        return f"{error.code().name} {error.details()}", dict(fields)


def charge(message, key):
    return call("Charge", message, idempotency_key=key, authorization="Bearer alice")


def expect(answer, text, status=None):
    assert text in str(answer[0]) and answer[1].get("oncegate-status") == status, answer
    print(answer[0], status)


expect(charge(b"100 EUR", "order-1"), "charged 1", "executed")
expect(charge(b"100 EUR", "order-1"), "charged 1", "replayed")
# Oncegate's refusals are HTTP statuses, which gRPC maps to its own codes.
expect(charge(b"200 EUR", "order-1"), "status: 422")
expect(call("Charge", b"100 EUR", authorization="Bearer alice"), "status: 400")
expect(call("Executions"), "1")

# An error that the service marks as not executed: the retry is the next attempt.
expect(charge(b"busy", "order-2"), "UNAVAILABLE busy 2", "released")
expect(charge(b"busy", "order-2"), "UNAVAILABLE busy 3", "released")
# The danger: any other error is stored, UNAVAILABLE as well, and each retry gets it again.
expect(charge(b"broken", "order-3"), "UNAVAILABLE broken 4", "executed")
expect(charge(b"broken", "order-3"), "UNAVAILABLE broken 4", "replayed")
expect(call("Executions"), "4")
