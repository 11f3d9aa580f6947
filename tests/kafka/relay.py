"""Relays in front of a broker, which read whole messages of Kafka's protocol, and garble, refuse or drop some."""

import socket
import struct
import threading

PRODUCE, FETCH = 0, 1


def read_varint(message, at):
    value, shift = 0, 0
    while True:
        byte = message[at]
        value, at, shift = value | (byte & 127) << shift, at + 1, shift + 7
        if byte < 128:
            return value, at


class Relay:
    """Passes connections on to a port. `request` and `response` change a message, and drop it with None."""

    def __init__(self, port):
        self.broker = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client, _ = self.listener.accept()
            try:
                broker = socket.create_connection(("127.0.0.1", self.broker))
            except OSError:
                client.close()
                continue
            # What this connection has asked for, by the numbers of the requests.
            asked = {}
            request = lambda message, client=client, asked=asked: self.request(message, client, asked)
            response = lambda message, asked=asked: self.response(message, asked)
            threading.Thread(target=self.pump, args=(client, broker, request), daemon=True).start()
            threading.Thread(target=self.pump, args=(broker, client, response), daemon=True).start()

    def pump(self, source, sink, change):
        """Passes whole messages on, each behind its length in four bytes."""
        stream = source.makefile("rb")
        try:
            while head := stream.read(4):
                message = change(stream.read(int.from_bytes(head, "big")))
                if message is not None:
                    sink.sendall(len(message).to_bytes(4, "big") + message)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def request(self, message, client, asked):
        return message

    def response(self, message, asked):
        return message


class FaultyRelay(Relay):
    """Garbles a text in the records that are read, refuses the records that are written to a topic, or drops requests."""

    def __init__(self, port):
        self.garbled, self.refused, self.refusals, self.dropped = None, None, 0, None
        super().__init__(port)

    def request(self, message, client, asked):
        key, version, number, length = struct.unpack(">hhih", message[:10])
        if key == self.dropped:
            return None
        asked[number] = key
        if key != PRODUCE or not self.refused or self.refused.encode() not in message:
            return message
        # Of a flexible version: no transaction, `acks`, the time limit, one topic, and one partition of it.
        assert 9 <= version <= 12, version
        at = 10 + max(length, 0) + 1 + 1 + 2 + 4
        topics, at = read_varint(message, at)
        length, at = read_varint(message, at)
        topic = message[at - 1:at - 1 + length]
        partitions, at = read_varint(message, at - 1 + length)
        assert (topics, partitions, topic[1:].decode()) == (2, 2, self.refused), message
        # KAFKA_STORAGE_ERROR is what a full disk becomes, and POLICY_VIOLATION what no other try changes.
        entry = message[at:at + 4] + struct.pack(">hqqq", self.code, -1, -1, -1) + b"\1\0\0"
        answer = struct.pack(">i", number) + b"\0\2" + topic + b"\2" + entry + b"\0" + struct.pack(">i", 0) + b"\0"
        self.refusals += 1
        client.sendall(len(answer).to_bytes(4, "big") + answer)
        return None

    def response(self, message, asked):
        number, = struct.unpack(">i", message[:4])
        if asked.pop(number, None) == FETCH and self.garbled:
            message = message.replace(self.garbled.encode(), self.garbled.upper().encode())
        return message

    def garble(self, text):
        """Has the batches with this text fail their check, until it is None."""
        self.garbled = text

    def drop(self, key):
        """Drops the requests of this kind (8 commits offsets), until it is None."""
        self.dropped = key

    def refuse(self, topic, code):
        """Refuses each record of the topic with this error, until the topic is None."""
        self.refused, self.code = topic, code

    def count_refusals(self):
        return self.refusals
