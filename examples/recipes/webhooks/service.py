"""Webhooks: a bolt app for Slack, which works for 3.4 seconds on each event, and a handler for the other senders.

It verifies no signature, because all requests come through Oncegate. Bolt's own check would refuse an event that waited for more than
five minutes. `late` is an event that the service refuses twice, as if it were down.
"""

import json
import time

from counting import CountingHandler, serve
from slack_bolt import App, BoltRequest
from slack_bolt.authorization import AuthorizeResult

# Bolt answers after the work, and asks nothing of Slack.
slack = App(
    signing_secret="unused",
    request_verification_enabled=False,
    token_verification_enabled=False,
    authorize=lambda: AuthorizeResult(enterprise_id=None, team_id="T1", bot_token="xoxb-recipe"),
    process_before_response=True,
)
refusals = iter([503, 503])


@slack.event("app_mention")
def work(context):
    time.sleep(3.4)
    context["execute"]()


class Webhooks(CountingHandler):
    def do_POST(self):
        body = self.body().decode()
        if self.path != "/webhooks/slack":
            return self.answer(200, {"handled": self.execute()})
        if json.loads(body).get("event_id") == "late" and (status := next(refusals, None)):
            return self.answer(status, {})
        answer = slack.dispatch(BoltRequest(body=body, headers=self.headers, context={"execute": self.execute}))
        self.answer(answer.status, json.loads(answer.body or "{}"))


serve(Webhooks)
