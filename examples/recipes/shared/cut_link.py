"""A link that breaks: passes TCP connections on to the address in the first argument, and prints its own port.

Each further argument is for the next POST or PUT, or over HTTP/2 for the next connection: the number of events that arrive before it is
cut; or a time such as `2s`, after which it is cut; or `-`, for no cut. At 0, not even the head of a response arrives. After the last
argument, nothing is cut.
"""

import select
import socket
import sys
import threading
import time

host, port = sys.argv[1].rsplit(":", 1)
plan = iter(sys.argv[2:])


def pass_on(client):
    with client, socket.create_connection((host, int(port))) as service:
        events, end = None, None
        while True:
            left = None if end is None else max(0, end - time.monotonic())
            readable = select.select([client, service], [], [], left)[0]
            if not readable:
                return
            for ready in readable:
                piece = ready.recv(65536)
                if not piece or (ready is service and events is not None and events <= 0):
                    return
                if ready is client:
                    if piece.startswith((b"POST ", b"PUT ", b"PRI ")):
                        cut = next(plan, "-")
                        events = int(cut) if cut.isdigit() else None
                        end = time.monotonic() + float(cut[:-1]) if cut.endswith("s") else None
                    service.sendall(piece)
                else:
                    if events is not None:
                        events -= piece.count(b"data: ")
                    client.sendall(piece)


def guarded(client):
    try:
        pass_on(client)
    except OSError:
        pass  # One side has closed its connection, and the other one is closed with it.


listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    threading.Thread(target=guarded, args=(listener.accept()[0],), daemon=True).start()
