"""A gRPC service without generated code: messages are bytes. `Charge` counts an execution; `Executions` tells the count."""

import concurrent.futures
import threading

import grpc

executions = 0
lock = threading.Lock()


def charge(message, context):
    global executions
    with lock:
        executions += 1
        number = executions
    if message == b"busy":
        # Nothing was done. Without this field Oncegate stores the call: for HTTP, its status is 200.
        context.send_initial_metadata((("oncegate-decision", "release"),))
        context.abort(grpc.StatusCode.UNAVAILABLE, f"busy {number}")
    if message == b"broken":
        context.abort(grpc.StatusCode.UNAVAILABLE, f"broken {number}")
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
