#!/usr/bin/env python3
"""Checks a history of `make torture` and shares no code with the checker of the runs. history.md describes the lines.

    check_history.py HISTORY.jsonl...     prints the figures and the breaches; ends with 1 if there are any
"""

import collections
import json
import sys

BREACHES_SHOWN = 20

POLICIES = {"hold", "retry", "retry-when-quiet"}

# Outcomes of a later request that do not contradict an acknowledged response: the request is another one, the store did not answer, or
# the client does not know.
AGREEING = {"key-reused", "rejected", "no-answer"}

# Outcomes of a request that was not executed, and never will be.
NOT_EXECUTED = {"released", "unknown", "in-flight", "key-reused"}

# Outcomes after which the key belongs to the request.
OWNING = {"executed", "replayed", "unstored", "accepted", "unknown", "broken"}

# Until a proxy no longer waits for the store's reply to a response that it stores, its attempt is in flight there.
REPLY_TIMEOUT = 3_000_000_000

Call = collections.namedtuple("Call", "invoked completed f type value")
ServiceCall = collections.namedtuple("ServiceCall", "began ended value")


class History:
    """The lines of a file by key. A key is a pair of a caller and the key's text."""

    def __init__(self, lines):
        self.policy = None
        self.faults = collections.Counter()
        self.calls = collections.defaultdict(list)
        self.effects = collections.defaultdict(list)
        self.service_calls = collections.defaultdict(list)
        self.effect_by_id = {}
        pending, ended = {}, set()
        for number, text in enumerate(lines):
            line = json.loads(text)
            process, kind, f, value = line["process"], line["type"], line["f"], line["value"]
            if line["index"] != number:
                raise ValueError(f"line {number} has the index {line['index']}")
            if process == "nemesis":
                if f == "start" and number == 0:
                    self.policy = value["policy"]
                elif value["phase"] == "start":
                    self.faults[f] += 1
            elif process == "service" and f == "call":
                self.service_calls[value["caller"], value["key"]].append(ServiceCall(value["began"], line["time"], value))
            elif process == "service":
                self.effects[value["caller"], value["key"]].append((line["time"], value))
                if value["effect"] in self.effect_by_id:
                    raise ValueError(f"line {number}: the effect {value['effect']} is there twice")
                self.effect_by_id[value["effect"]] = value
            elif kind == "invoke":
                if process in pending:
                    raise ValueError(f"line {number}: the process {process} has two requests")
                pending[process] = line["time"]
            else:
                key = value["caller"], value["key"]
                # A process that does not know its outcome leaves its place taken.
                invoked = pending[process] if kind == "info" else pending.pop(process)
                if process in ended:
                    raise ValueError(f"line {number}: the process {process} goes on after an info")
                ended.update([process] if kind == "info" else [])
                self.calls[key].append(Call(invoked, line["time"], f, kind, value))
        if self.policy not in POLICIES:
            raise ValueError(f"the first line has the policy {self.policy!r}, and not one of {sorted(POLICIES)}")
        if pending.keys() - ended:
            raise ValueError(f"the requests of the processes {sorted(pending.keys() - ended)} have no end")


def executed_twice(history, key, calls, effects):
    if history.policy == "hold" and len(effects) > 1:
        yield f"{len(effects)} effects"
    attempts = collections.Counter((effect["record"], effect["attempt"]) for _, effect in effects)
    yield from (f"attempt {attempt} of {record:.8} has {count} effects" for (record, attempt), count in attempts.items() if count > 1)
    # The service's own account, which has the requests that it refused too.
    served = sorted(history.service_calls[key], key=lambda call: call.began)
    reached = collections.Counter((call.value["record"], call.value["attempt"]) for call in served)
    yield from (f"attempt {attempt} of {record:.8} reached the service {count} times" for (record, attempt), count in reached.items() if count > 1)
    for one, following in zip(served, served[1:]):
        name = f"op {following.value['op']}, attempt {following.value['attempt']},"
        if history.policy == "hold" and following.began < one.ended:
            yield f"{name} began while another ran"
        elif history.policy == "hold" and not one.value["refused"]:
            yield f"{name} followed an attempt that was executed"


def without_cause(history, key, calls, effects):
    by_op = {call.value["op"]: call for call in calls}
    for time, effect in effects:
        call = by_op.get(effect["op"])
        if call is None or call.value["body"] != effect["body"] or call.invoked > time:
            yield f"effect {effect['effect']} has no request that it can come from"
            continue
        outcome = call.value["outcome"]
        # Another request may be answered from the delivery of this one, and the store may accept one and be unable to say so.
        is_refused = (outcome in NOT_EXECUTED or (outcome == "rejected" and call.f == "pay")
                      or (outcome == "replayed" and call.f == "pay" and history.policy == "hold"))
        if is_refused:
            yield f"effect {effect['effect']} comes from op {effect['op']}, which got {outcome}"


def differing(history, key, calls, effects):
    responses = {call.value["response"] for call in calls if call.value["outcome"] in ("executed", "replayed")}
    if len(responses) > 1:
        yield f"{len(responses)} different responses"
    firsts = [call for call in calls if call.value["outcome"] == "executed"]
    if len(firsts) > 1:
        yield f"{len(firsts)} first answers"
    if history.policy == "hold":
        named = {call.value["effect"] for call in calls if call.value["outcome"] in ("executed", "replayed", "unstored")}
        if len(named) > 1:
            yield f"answers name the effects {sorted(named)}"


def another_request(history, key, calls, effects):
    """Once the key belongs to a request, a request with another body gets 422."""
    owners = [call for call in calls if call.value["outcome"] in OWNING]
    if not owners:
        return
    owner = min(owners, key=lambda call: call.completed)
    for call in calls:
        outcome = call.value["outcome"]
        if outcome == "key-reused" and call.value["body"] == owner.value["body"]:
            yield f"op {call.value['op']} was refused as another request than op {owner.value['op']}"
        if call.value["body"] == owner.value["body"] or call.invoked < owner.completed:
            continue
        is_late_reply = (outcome == "in-flight" and call.invoked < owner.completed + REPLY_TIMEOUT
                         and any(is_waiting(other, call, owner) for other in calls))
        if outcome not in AGREEING and not is_late_reply:
            yield f"op {call.value['op']}, which is not the request of op {owner.value['op']}, got {outcome}"


def is_waiting(other, call, first):
    """Whether the proxy of this call may still wait for the store's reply to the end of another."""
    return (other is not call and other.value["proxy"] == call.value["proxy"] and other.invoked < first.completed
            and (other.type == "info" or other.completed >= call.invoked))


def lost(history, key, calls, effects):
    acknowledged = [call for call in calls if call.type == "ok"]
    if not acknowledged:
        return
    first = min(acknowledged, key=lambda call: call.completed)
    answered = min((call.completed for call in acknowledged if call.value["outcome"] != "accepted"), default=None)
    happened = {effect["effect"]: (time, effect["body"]) for time, effect in effects}
    causes = {effect["op"] for _, effect in effects}
    executing = {call.value["proxy"] for call in calls if call.value["op"] in causes}
    for call in calls:
        if call.value["outcome"] in ("executed", "replayed", "unstored"):
            time, body = happened.get(call.value["effect"], (None, None))
            if time is None or time > call.completed or body != call.value["body"]:
                yield f"op {call.value['op']} has the response of an effect that its request did not have by then"
    for call in calls:
        if call.invoked < first.completed:
            continue
        # An attempt that was not executed is followed by one elsewhere, while its own proxy misses the reply to its release.
        is_late_reply = (call.value["outcome"] == "in-flight" and call.invoked < first.completed + REPLY_TIMEOUT
                         and (call.value["proxy"] in executing or any(is_waiting(other, call, first) for other in calls)))
        # A request with the key of a message is answered as any other.
        is_unknown_message = call.f == "publish" and call.value["outcome"] == "unknown" and answered is None
        # A proxy that misses the reply to its own commit has the response that others acknowledge.
        is_unstored = call.value["outcome"] == "unstored" and first.value["effect"] in (call.value["effect"], None)
        agrees = call.type == "ok" or call.value["outcome"] in AGREEING or is_unstored or is_late_reply or is_unknown_message
        if not agrees:
            yield f"op {call.value['op']} got {call.value['outcome']} after op {first.value['op']} was acknowledged"
        # Any copy of a message may be the one that is executed.
        is_copy = call.f == "publish" and not call.value["last"]
        if call.value["op"] in causes and not is_copy:
            yield f"op {call.value['op']} was executed after op {first.value['op']} was acknowledged"
    for call in acknowledged:
        if call.value["outcome"] == "accepted" and answered is not None and call.invoked > answered + REPLY_TIMEOUT:
            yield f"op {call.value['op']} was accepted anew"


def across_scopes(history, key, calls, effects):
    for call in calls:
        effect = history.effect_by_id.get(call.value.get("effect"))
        if effect and effect["caller"] != call.value["caller"]:
            yield f"op {call.value['op']} of {call.value['caller']} got the response to {effect['caller']}"


def indefinite(history, key, calls, effects):
    final = [call for call in calls if call.value["last"] and call.value["outcome"] != "rejected"]
    bodies = {call.value["body"] for call in calls}
    definite = {"executed", "replayed"} | ({"unknown"} if history.policy != "retry" else set())
    for call in final:
        outcome = call.value["outcome"]
        if outcome == "accepted":
            # A completed operation is asked for its response.
            outcome = call.value["operation"]
            # A batch has no response.
            if outcome == "completed" and (effects if call.f == "batch" else call is not final[-1]):
                continue
        if outcome not in definite and not (outcome == "key-reused" and len(bodies) > 1):
            yield f"op {call.value['op']} got {outcome} at the end"
    if not final:
        yield "no answer at the end"


CHECKS = (executed_twice, without_cause, differing, another_request, lost, across_scopes, indefinite)


def check(history):
    """Returns the breaches: the check's name, the key, and what is wrong."""
    breaches = []
    for key in sorted(history.calls.keys() | history.effects.keys() | history.service_calls.keys()):
        calls, effects = history.calls[key], history.effects[key]
        for rule in CHECKS:
            breaches.extend((rule.__name__, key, what) for what in rule(history, key, calls, effects))
    return breaches


def main(paths):
    found = False
    for path in paths:
        with open(path, encoding="utf-8") as lines:
            history = History(lines)
        breaches = check(history)
        calls = sum(map(len, history.calls.values()))
        print(f"{path}: {calls} requests, {len(history.calls)} keys, {len(history.effect_by_id)} effects, "
              f"{sum(history.faults.values())} faults, {len(breaches)} breaches")
        for rule, (caller, key), what in breaches[:BREACHES_SHOWN]:
            print(f"  {rule}: {caller}/{key}: {what}")
        found = found or bool(breaches) or not calls
    return 1 if found or not paths else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
