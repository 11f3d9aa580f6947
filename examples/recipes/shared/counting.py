"""The part that the recipes' services share: a count of executions, and the port on standard output."""

import http.server
import json
import threading


class CountingHandler(http.server.BaseHTTPRequestHandler):
    """Answers `GET /executions` with the number of requests that were executed."""

    protocol_version = "HTTP/1.1"
    executions = 0
    lock = threading.Lock()

    def execute(self):
        """Counts one execution, and returns its number."""
        with self.lock:
            CountingHandler.executions += 1
            return CountingHandler.executions

    def body(self):
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def answer(self, status, content, fields=()):
        body = json.dumps(content).encode()
        self.send_response(status)
        for name, value in (("Content-Type", "application/json"), ("Content-Length", str(len(body))), *fields):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.answer(200, self.executions) if self.path == "/executions" else self.answer(404, {})

    def log_message(self, *arguments):
        """The service's log has only its errors."""


def serve(handler):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()
