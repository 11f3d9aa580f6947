"""A relay that asks for a login (SASL) before it passes a connection on: PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512, of one user.

Tansu's own users cannot be created where a login is required. The messages are those of Kafka's protocol guide, and of RFC 5802.
"""

import base64
import hashlib
import hmac
import os
import socket
import struct
import threading

USER, PASSWORD = "oncegate", "hunter2"
HANDSHAKE, AUTHENTICATE, API_VERSIONS = 17, 36, 18
ILLEGAL_STATE, AUTHENTICATION_FAILED = 34, 58


class Refused(Exception):
    """The login is wrong."""


def plain():
    message = yield
    _, user, password = message.split(b"\0")
    if (user.decode(), password.decode()) != (USER, PASSWORD):
        raise Refused
    yield b""


def scram(name):
    """The server's side of RFC 5802."""
    first = (yield).decode()
    bare = first.split(",", 2)[2]
    fields = dict(part.split("=", 1) for part in bare.split(","))
    salt, count = os.urandom(16), 4096
    nonce = fields["r"] + base64.b64encode(os.urandom(12)).decode()
    challenge = f"r={nonce},s={base64.b64encode(salt).decode()},i={count}"
    final = (yield challenge.encode()).decode()
    without_proof, proof = final.rsplit(",p=", 1)
    digest = lambda key, text: hmac.new(key, text, name).digest()
    salted = hashlib.pbkdf2_hmac(name, PASSWORD.encode(), salt, count)
    client_key = digest(salted, b"Client Key")
    signed = ",".join([bare, challenge, without_proof]).encode()
    signature = digest(hashlib.new(name, client_key).digest(), signed)
    expected = bytes(a ^ b for a, b in zip(client_key, signature))
    if fields["n"] != USER or f"r={nonce}" not in without_proof or base64.b64decode(proof) != expected:
        raise Refused
    yield b"v=" + base64.b64encode(digest(digest(salted, b"Server Key"), signed))


MECHANISMS = {
    "PLAIN": plain,
    "SCRAM-SHA-256": lambda: scram("sha256"),
    "SCRAM-SHA-512": lambda: scram("sha512"),
}


def read_frame(stream):
    head = stream.read(4)
    return stream.read(int.from_bytes(head, "big")) if len(head) == 4 else None


def send_frame(connection, body):
    connection.sendall(len(body).to_bytes(4, "big") + body)


class SaslFront:
    def __init__(self, port):
        self.broker = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client, _ = self.listener.accept()
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        try:
            broker = socket.create_connection(("127.0.0.1", self.broker))
            requests, responses = client.makefile("rb"), broker.makefile("rb")
            if self.log_in(client, broker, requests, responses):
                threading.Thread(target=self.pump, args=(responses, client), daemon=True).start()
                self.pump(requests, broker)
            client.shutdown(socket.SHUT_RDWR)
        except (OSError, ValueError):
            pass

    def pump(self, stream, sink):
        try:
            while (frame := read_frame(stream)) is not None:
                send_frame(sink, frame)
        except OSError:
            pass

    def log_in(self, client, broker, requests, responses):
        """Answers requests until one logs in."""
        login = None
        while (frame := read_frame(requests)) is not None:
            key, version, number, name = struct.unpack(">hhih", frame[:10])
            body = frame[10 + max(name, 0):]
            reply = struct.pack(">i", number)
            if key == API_VERSIONS:
                send_frame(broker, frame)
                send_frame(client, read_frame(responses))
            elif key == HANDSHAKE:
                mechanism = body[2:].decode()
                login = MECHANISMS[mechanism]()
                next(login)
                names = [struct.pack(">h", len(name)) + name.encode() for name in MECHANISMS]
                send_frame(client, reply + struct.pack(">hi", 0, len(names)) + b"".join(names))
            elif key == AUTHENTICATE and login:
                # From version 2 on lengths are one byte, and tagged fields follow.
                is_compact = version >= 2
                sent = body[2:-1] if is_compact else body[4:]
                try:
                    error, answer = 0, login.send(sent)
                except Refused:
                    error, answer = AUTHENTICATION_FAILED, b""
                if is_compact:
                    reply += b"\0" + struct.pack(">hB", error, 0) + bytes([len(answer) + 1]) + answer
                else:
                    reply += struct.pack(">hhi", error, -1, len(answer)) + answer
                reply += struct.pack(">q", 0) if version >= 1 else b""
                send_frame(client, reply + (b"\0" if is_compact else b""))
                if error:
                    return False
                # The last message of a login is empty or the server's proof.
                if not answer or answer.startswith(b"v="):
                    return True
            else:
                return False
        return False
