"""The senders: `client.py URL SENDER SECRET EVENT...` sends the events side by side, and each again until the answer is a success.

SECRET is the number of a secret in oncegate.toml, or a wrong secret. Prints a line for each event, with all answers. `late` is an event
that was signed almost five minutes ago.
"""

import concurrent.futures
import datetime
import hashlib
import hmac
import json
import pathlib
import sys
import time
import tomllib

import requests
from slack_sdk.signature import SignatureVerifier
from standardwebhooks import Webhook
from stripe import WebhookSignature


def slack(event, now, retry):
    content = {"type": "event_callback", "event_id": event, "team_id": "T1", "event": {"type": "app_mention", "text": "hello"}}
    if event == "challenge":
        content = {"type": "url_verification", "challenge": "3eZbrw1a"}
    body = json.dumps(content)
    signature = SignatureVerifier(secret).generate_signature(timestamp=str(now), body=body)
    fields = {"X-Slack-Request-Timestamp": str(now), "X-Slack-Signature": signature}
    return body, fields | ({"X-Slack-Retry-Num": str(retry), "X-Slack-Retry-Reason": "http_timeout"} if retry else {})


def stripe(event, now, retry):
    # The number of endpoints that have not confirmed the event yet differs at each delivery.
    body = json.dumps({"id": event, "object": "event", "type": "charge.succeeded", "pending_webhooks": 2 - retry})
    return body, {"Stripe-Signature": WebhookSignature.generate_signature_header(body, secret, now)}


def github(event, now, retry):
    body = '{"ref": "refs/heads/main"}'
    signature = hmac.new(secret.encode(), body.encode(), hashlib.sha256).hexdigest()
    return body, {"X-GitHub-Hook-ID": "1", "X-GitHub-Delivery": event, "X-Hub-Signature-256": f"sha256={signature}"}


def standard_webhooks(event, now, retry):
    body = '{"type": "contact.created"}'
    signature = Webhook(secret).sign(event, datetime.datetime.fromtimestamp(now, datetime.UTC), body)
    return body, {"webhook-id": event, "webhook-timestamp": str(now), "webhook-signature": signature}


# How one signs, for how many seconds it waits, and its pauses. Slack's real ones are 3, and then 0, 60 and 300.
SENDERS = {
    "slack": (slack, 1, (0, 1, 2)),
    "stripe": (stripe, 10, (1,)),
    "github": (github, 10, ()),
    "standard-webhooks": (standard_webhooks, 10, ()),
}
url, sender, secret, *events = sys.argv[1:]
if secret.isdigit():
    routes = tomllib.loads((pathlib.Path(__file__).parent / "oncegate.toml").read_text())["routes"]
    secret = next(route for route in routes if route["sender"] == sender)["signature"]["secrets"][int(secret)]
sign, seconds, pauses = SENDERS[sender]


def deliver(event):
    answers = []
    for retry, pause in enumerate((0, *pauses)):
        time.sleep(pause)
        body, fields = sign(event, int(time.time()) - (298 if event == "late" else 0), retry)
        fields["Content-Type"] = "application/json"
        try:
            answer = requests.post(f"{url}/webhooks/{sender}", body, headers=fields, timeout=seconds)
        except requests.RequestException:
            answers.append("lost")
            continue
        content = answer.json()
        word = content.get("code") or answer.headers.get("oncegate-status") or content.get("challenge")
        answers.append(f"{answer.status_code} {word}")
        if answer.ok:
            break
    return ", ".join(answers)


with concurrent.futures.ThreadPoolExecutor(len(events)) as pool:
    print(*pool.map(deliver, events), sep="\n")
