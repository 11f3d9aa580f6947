"""The service under test: payments, kept in a list."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.server.payments.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        if self.server.loses_answers:
            self.close_connection = True
            return
        answer = json.dumps({"payment": len(self.server.payments)}).encode()
        self.send_response(201)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


class Payments(ThreadingHTTPServer):
    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.payments = []
        self.loses_answers = False
