"""A payments service for the example. It charges slowly, and cuts off some of its answers.

POST /v1/payments                 charges, and answers 201 with a new number; one in five answers is cut off
GET  /v1/payments/by-record/ID    the payment of one of Oncegate's records, or 404 if it was never charged
GET  /v1/payments/by-key?key=KEY  all payments under a key, of all callers
GET  /health
"""

import http.server
import itertools
import json
import random
import socket
import threading
import time
import urllib.parse

NUMBERS = itertools.count(1)
# The id of Oncegate's record, and the payment.
CHARGED = []
LOCK = threading.Lock()


class Payments(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        if url.path == "/health":
            return self.answer(200, {"status": "up"})
        if url.path.startswith("/v1/payments/by-record/"):
            asked = url.path.rpartition("/")[2]
            with LOCK:
                found = [payment for record, payment in CHARGED if record and record == asked]
            return self.answer(201, found[-1]) if found else self.answer(404, {"error": "never charged"})
        if url.path == "/v1/payments/by-key":
            key = urllib.parse.parse_qs(url.query).get("key", [""])[0]
            with LOCK:
                found = [payment for _, payment in CHARGED if payment["for"] == key]
            return self.answer(200, found)
        return self.answer(404, {"error": "no such page"})

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        key = self.headers.get("Idempotency-Key", "").strip('"')
        # The first 64 digits are the same for each attempt of a key, and two callers with one key have two of them.
        record = self.headers.get("Oncegate-Reservation", "")[:64]
        time.sleep(random.uniform(0.05, 0.5))
        with LOCK:
            payment = {"payment": next(NUMBERS), "for": key, "bytes": len(body)}
            CHARGED.append((record, payment))
        print(f"charged {payment}")
        if random.random() < 0.2:
            # Charged, and the client gets no answer.
            self.close_connection = True
            return self.connection.shutdown(socket.SHUT_RDWR)
        return self.answer(201, payment)

    def answer(self, status, value):
        text = json.dumps(value).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


http.server.ThreadingHTTPServer(("0.0.0.0", 3000), Payments).serve_forever()
