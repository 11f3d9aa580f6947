"""A gRPC service without generated code: `Export` sends ten rows, one each 0.1 s."""

import concurrent.futures
import threading
import time

import grpc

executions = 0
lock = threading.Lock()


def export(message, context):
    global executions
    with lock:
        executions += 1
        number = executions
    context.set_trailing_metadata((("x-number", str(number)),))
    for row in range(10):
        time.sleep(0.1)
        if message == b"broken" and row == 3:
            raise ValueError("the fourth row cannot be read")
        # The time shows the client whether this row was held back.
        yield f"data: {number} {row} {time.time()}".encode()


methods = {"Export": grpc.unary_stream_rpc_method_handler(export)}
server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("reports.Reports", methods),))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
print(port, flush=True)
server.wait_for_termination()
