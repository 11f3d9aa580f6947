"""A consumer as it is usual without Oncegate: it acknowledges a message after the step, so that the step is executed at least once.

    python3 without.py kafka|rabbitmq BROKER PLACE GROUP SERVICE NEXT
"""

import sys
import time
import urllib.request

kind, broker, place, group, service, following = sys.argv[1:]


def execute(body):
    """Posts the message to the service until it answers; None where it declines the order."""
    while True:
        try:
            request = urllib.request.Request(service, body, {"Content-Type": "application/json"})
            return urllib.request.urlopen(request, timeout=5).read()
        except OSError as error:
            if getattr(error, "code", None) == 402:
                return None
            time.sleep(0.1)


def consume_kafka():
    from confluent_kafka import Consumer, Producer

    settings = {"bootstrap.servers": broker, "log_level": 0}
    about_group = {"group.id": group, "enable.auto.commit": False, "auto.offset.reset": "earliest", "session.timeout.ms": 6000}
    consumer, producer = Consumer(settings | about_group), Producer(settings)
    consumer.subscribe([place])
    while True:
        record = consumer.poll(1)
        if record is None or record.error():
            continue
        answer = execute(record.value())
        if following and answer:
            producer.produce(following, answer, record.key())
            producer.flush()
        consumer.commit(record, asynchronous=False)


def consume_rabbitmq():
    import pika

    channel = pika.BlockingConnection(pika.URLParameters(broker)).channel()
    channel.confirm_delivery()
    channel.basic_qos(prefetch_count=1)
    for method, properties, body in channel.consume(place):
        answer = execute(body)
        if following and answer:
            channel.basic_publish("", following, answer, properties, mandatory=True)
        channel.basic_ack(method.delivery_tag)


{"kafka": consume_kafka, "rabbitmq": consume_rabbitmq}[kind]()
