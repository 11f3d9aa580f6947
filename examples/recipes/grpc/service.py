"""A gRPC service without generated code: messages are bytes. `Charge` counts an execution; `Executions` tells the count."""

import concurrent.futures
import threading
import time

import grpc

executions = 0
lock = threading.Lock()


def charge(message, context):
    global executions
    with lock:
        executions += 1
        number = executions
    context.set_trailing_metadata((("x-number", str(number)),))
    if message == b"too much":
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"no funds: 100 % of {number} €")
    if message == b"no account":
        # The service decides about this answer itself: the account may be opened at any time.
        context.set_trailing_metadata((("oncegate-decision", "release"),))
        context.abort(grpc.StatusCode.NOT_FOUND, f"no account {number}")
    if message == b"busy" and number % 2 == 1:
        context.abort(grpc.StatusCode.UNAVAILABLE, f"busy {number}")
    if message == b"bug":
        raise ValueError(f"bug {number}")
    if message == b"slow":
        time.sleep(1.5)
    return f"charged {number}".encode()


methods = {
    "Charge": grpc.unary_unary_rpc_method_handler(charge),
    "Executions": grpc.unary_unary_rpc_method_handler(lambda message, context: str(executions).encode()),
}
server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("payments.Payments", methods),))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
print(port, flush=True)
server.wait_for_termination()
