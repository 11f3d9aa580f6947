"""One step of the saga, as any service has it: it tells no retry from a first request. Each POST is one more effect.

    python3 service.py FILE PORT STATUS

POST with {"order": …}, or with an event about the step before, inserts a row into FILE, a SQLite database without a unique constraint. The row has the request's reference, which
is the field `Idempotency-Key`. GET …/REFERENCE answers as that POST did, or with 404 if there is no such row.

About every tenth order is declined with STATUS, as a card without funds is (402), or a seat that is sold out (410); 0 declines none. A
decline has no effect, and GET knows nothing of it: the same order, sent again, is declined again. It is noted for the count alone.
"""

import json
import random
import sqlite3
import sys
import threading
import time
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

# A step takes up to this long before its effect, and again after it. A kill strikes on either side.
SECONDS_MAX = 0.05


class Step(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    lock = threading.Lock()

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        # An event has what the step before has answered in `data.body`.
        order = body.get("data", {}).get("body", body)["order"]
        time.sleep(random.uniform(0, SECONDS_MAX))
        if declines and zlib.crc32(f"{order} {declines}".encode()) % 10 == 0:
            with self.lock, self.database:
                self.database.execute("insert into declines (order_id) values (?)", (order,))
            return self.answer(declines, {"order": order, "error": "declined"})
        row = (order, self.headers["Idempotency-Key"])
        with self.lock, self.database:
            number = self.database.execute("insert into effects (order_id, reference) values (?, ?)", row).lastrowid
        time.sleep(random.uniform(0, SECONDS_MAX))
        self.answer(201, {"order": order, "number": number})

    def do_GET(self):
        reference = unquote(self.path.rsplit("/", 1)[1])
        with self.lock:
            found = self.database.execute("select order_id, number from effects where reference = ?", (reference,)).fetchone()
        self.answer(201, dict(zip(("order", "number"), found))) if found else self.answer(404, {})

    def answer(self, status, content):
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        """The log has only errors."""


file, port, declines = sys.argv[1], *map(int, sys.argv[2:])
Step.database = sqlite3.connect(file, check_same_thread=False)
Step.database.execute("create table if not exists effects (number integer primary key, order_id text not null, reference text)")
Step.database.execute("create table if not exists declines (order_id text not null)")
# Only the process is killed, and not the machine.
Step.database.execute("pragma synchronous = off")
# No request waits at the door: the service answers 404 for a row only if nothing will insert it any more.
ThreadingHTTPServer.request_queue_size = 1024
ThreadingHTTPServer(("127.0.0.1", port), Step).serve_forever()
