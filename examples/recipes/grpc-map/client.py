"""grpcio: `client.py URL KEY AMOUNT FILE` charges, adds the message's hash to the file, and prints Oncegate's status and the result."""

import hashlib
import sys

import grpc
from google.protobuf.struct_pb2 import Struct

url, key, amount, file = sys.argv[1:]
order = Struct()
order.update({"amount": int(amount), "currency": "EUR", "items": ["tea", "cup"], "customer": {"name": "alice", "city": "Bonn"}})
order.update({name: name for name in ("coupon", "source", "campaign", "device", "language")})
# A map in Python's protobuf has another order in each process.
message = order.SerializeToString()
with open(file, "a") as hashes:
    print(hashlib.sha256(message).hexdigest(), file=hashes)
channel = grpc.insecure_channel(url.removeprefix("http://"), (("grpc.enable_retries", 0),))
call = channel.unary_unary("/payments.Payments/Charge", response_deserializer=Struct.FromString)
try:
    answer, done = call.with_call(message, metadata=[("authorization", "Bearer alice"), ("idempotency-key", key)], timeout=20)
    result = f"charge {answer['charge']:.0f} of {answer['amount']:.0f}"
except grpc.RpcError as error:
    result, done = error.code().name, error
metadata = dict((*(done.initial_metadata() or ()), *(done.trailing_metadata() or ())))
print(*filter(None, (metadata.get("oncegate-status"), result)))
