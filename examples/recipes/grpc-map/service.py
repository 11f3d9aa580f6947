"""A gRPC service whose messages are Structs: `Charge` takes a second, and answers the number of the charge."""

import concurrent.futures
import threading
import time

import grpc
from google.protobuf.struct_pb2 import Struct

executions = 0
lock = threading.Lock()


def charge(order, context):
    global executions
    with lock:
        executions += 1
        number = executions
    time.sleep(1)
    answer = Struct()
    answer.update({"charge": number, "amount": order["amount"]})
    return answer


handler = grpc.unary_unary_rpc_method_handler(charge, Struct.FromString, Struct.SerializeToString)
server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("payments.Payments", {"Charge": handler}),))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
print(port, flush=True)
server.wait_for_termination()
