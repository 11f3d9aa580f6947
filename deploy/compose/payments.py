"""A payments service for the example. It charges slowly, and cuts off some of its answers.

POST /v1/payments                 charges, and answers 201 with a new number; one in five answers is cut off
GET  /v1/payments/by-key?key=KEY  the payment of a key, or 404 if the key was never charged
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
CHARGED = {}
LOCK = threading.Lock()


class Payments(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        if url.path == "/health":
            return self.answer(200, {"status": "up"})
        if url.path == "/v1/payments/by-key":
            key = urllib.parse.parse_qs(url.query).get("key", [""])[0]
            with LOCK:
                payment = CHARGED.get(key)
            return self.answer(201, payment) if payment else self.answer(404, {"error": "never charged"})
        return self.answer(404, {"error": "no such page"})

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        key = self.headers.get("Idempotency-Key", "").strip('"')
        time.sleep(random.uniform(0.05, 0.5))
        with LOCK:
            payment = {"payment": next(NUMBERS), "for": key, "bytes": len(body)}
            CHARGED[key] = payment
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
