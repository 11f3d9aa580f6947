#!/usr/bin/python3
"""An order service that completes its keys in its own transactions. README.md in this folder explains it."""

import json
import os
import threading
import time
import urllib.request
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pika
import psycopg2

LISTEN = os.environ.get("ORDERS_LISTEN", "127.0.0.1:3000")
DATABASE = os.environ.get("ORDERS_DATABASE", "postgresql://orders@127.0.0.1/shop")
BROKER = os.environ.get("ORDERS_BROKER", "amqp://guest:guest@127.0.0.1:5672")
PROVIDER = os.environ.get("ORDERS_PROVIDER", "http://127.0.0.1:4000/charges")
QUEUE = os.environ.get("ORDERS_QUEUE", "payment_events")
JSON = [["Content-Type", "application/json"]]


@contextmanager
def transaction():
    connection = psycopg2.connect(DATABASE)
    try:
        with connection, connection.cursor() as cursor:  # commits, or rolls back
            yield cursor
    finally:
        connection.close()


def complete(cursor, attempt, status, document):
    """Completes the key, as the last statement of a transaction: after its commit, every retry gets this response."""
    body = json.dumps(document).encode()
    cursor.execute("select oncegate.complete(%s, %s, %s, %s)", (attempt, status, json.dumps(JSON), body))
    return status, body


def create_order(headers, order):
    key = headers["Idempotency-Key"].strip('"')
    with transaction() as cursor:
        cursor.execute(
            "insert into shop.orders (item, amount) values (%s, %s) returning id", (order["item"], order["amount"])
        )
        (number,) = cursor.fetchone()
        payment = json.dumps({"order": number, "amount": order["amount"]})
        # The service sends it after the commit. The key names the step, however often the message is sent.
        cursor.execute("insert into shop.outbox (key, message) values (%s, %s)", (key + ":payment", payment))
        return complete(cursor, headers["Oncegate-Reservation"], 201, {"order": number, "state": "accepted"})


def pay(headers, payment):
    attempt, key = headers["Oncegate-Reservation"], headers["Idempotency-Key"].strip('"')
    if headers["Oncegate-Recovery-Point"] != "charge_created":
        # The provider gets the key too: until the recovery point is set, only the provider knows of the charge.
        request = urllib.request.Request(PROVIDER, json.dumps(payment).encode(), {"Idempotency-Key": key})
        urllib.request.urlopen(request, timeout=10).close()
        with transaction() as cursor:
            cursor.execute("select oncegate.recovery_point(%s, 'charge_created')", (attempt,))
    with transaction() as cursor:
        cursor.execute("update shop.orders set state = 'paid' where id = %s", (payment["order"],))
        return complete(cursor, attempt, 200, {"order": payment["order"], "state": "paid"})


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            status, body = {"/orders": create_order, "/payments": pay}[self.path](self.headers, asked)
        except Exception as error:  # nothing uncommitted has happened
            print(f"{self.path}: {error!r}", flush=True)
            status, body = 500, b"{}"
        self.send_response(status)
        for name, value in JSON + [["Content-Length", str(len(body))]]:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def publish_outbox():
    """Sends each message at least once: a message leaves the table after the broker has confirmed it."""
    with transaction() as cursor:
        cursor.execute(
            "delete from shop.outbox where id in (select id from shop.outbox order by id limit 100 for update skip locked)"
            " returning key, message"
        )
        messages = cursor.fetchall()
        if messages:
            connection = pika.BlockingConnection(pika.URLParameters(BROKER))
            channel = connection.channel()
            channel.queue_declare(QUEUE, durable=True)
            channel.confirm_delivery()
            for key, message in messages:
                properties = pika.BasicProperties("application/json", headers={"x-idempotency-key": key}, delivery_mode=2)
                channel.basic_publish("", QUEUE, message, properties, mandatory=True)
            connection.close()


def publish():
    while True:
        try:
            publish_outbox()
        except Exception as error:
            print(f"the outbox waits: {error!r}", flush=True)
        time.sleep(0.2)


if __name__ == "__main__":
    host, port = LISTEN.rsplit(":", 1)
    server = ThreadingHTTPServer((host, int(port)), Handler)
    threading.Thread(target=publish, daemon=True).start()
    print("ready", flush=True)
    server.serve_forever()
