#!/usr/bin/env python3
"""Checks a history of `make torture` and shares no code with the checker of the runs. RELIABILITY.md describes the lines.

    check_history.py HISTORY.jsonl...     prints the figures and the breaches; ends with 1 if there are any
"""

import collections
import json
import sys

BREACHES_SHOWN = 20

# Outcomes of a later request that do not contradict an acknowledged response: the request is another one, or the store did not answer.
AGREEING_FAILURES = {"key-reused", "rejected"}

# Until a proxy no longer waits for the store's reply to a response that it stores, its attempt is in flight there.
REPLY_TIMEOUT = 3_000_000_000

Call = collections.namedtuple("Call", "invoked completed f type value")


class History:
    """The lines of a file by key. A key is a pair of a caller and the key's text."""

    def __init__(self, lines):
        self.policy = None
        self.faults = collections.Counter()
        self.calls = collections.defaultdict(list)
        self.effects = collections.defaultdict(list)
        self.effect_by_id = {}
        pending = {}
        for number, text in enumerate(lines):
            line = json.loads(text)
            process, kind, f, value = line["process"], line["type"], line["f"], line["value"]
            if line["index"] != number:
                raise ValueError(f"line {number} has the index {line['index']}")
            if process == "nemesis":
                if f == "start":
                    self.policy = value["policy"]
                elif value["phase"] == "start":
                    self.faults[f] += 1
            elif process == "service":
                self.effects[value["caller"], value["key"]].append((line["time"], value))
                self.effect_by_id[value["effect"]] = value
            elif kind == "invoke":
                if process in pending:
                    raise ValueError(f"line {number}: the process {process} has two requests")
                pending[process] = line["time"]
            else:
                key = value["caller"], value["key"]
                # A process that does not know its outcome leaves its place taken.
                invoked = pending[process] if kind == "info" else pending.pop(process)
                self.calls[key].append(Call(invoked, line["time"], f, kind, value))


def executed_twice(history, key, calls, effects):
    if history.policy == "hold" and len(effects) > 1:
        yield f"{len(effects)} effects"
    attempts = collections.Counter((effect["record"], effect["attempt"]) for _, effect in effects)
    yield from (f"attempt {attempt} of {record:.8} has {count} effects" for (record, attempt), count in attempts.items() if count > 1)


def differing(history, key, calls, effects):
    responses = {call.value["response"] for call in calls if call.value["outcome"] in ("executed", "replayed")}
    if len(responses) > 1:
        yield f"{len(responses)} different responses"


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
    happened = {effect["effect"] for _, effect in effects}
    causes = {effect["op"] for _, effect in effects}
    executing = {call.value["proxy"] for call in calls if call.value["op"] in causes}
    for call in acknowledged:
        if call.value["outcome"] in ("executed", "replayed") and call.value["effect"] not in happened:
            yield f"op {call.value['op']} has the response of an effect that this key does not have"
    for call in calls:
        if call.invoked < first.completed:
            continue
        # An attempt that was not executed is followed by one elsewhere, while its own proxy misses the reply to its release.
        is_late_reply = (call.value["outcome"] == "in-flight" and call.invoked < first.completed + REPLY_TIMEOUT
                         and (call.value["proxy"] in executing or any(is_waiting(other, call, first) for other in calls)))
        # A request with the key of a message is answered as any other.
        is_unknown_message = call.f == "publish" and call.value["outcome"] == "unknown" and answered is None
        agrees = call.value["outcome"] in AGREEING_FAILURES or is_late_reply or is_unknown_message
        if call.type == "fail" and not agrees:
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
            if outcome == "completed" and call is not final[-1]:
                continue
        if outcome not in definite and not (outcome == "key-reused" and len(bodies) > 1):
            yield f"op {call.value['op']} got {outcome} at the end"
    if not final:
        yield "no answer at the end"


CHECKS = (executed_twice, differing, lost, across_scopes, indefinite)


def check(history):
    """Returns the breaches: the check's name, the key, and what is wrong."""
    breaches = []
    for key in sorted(history.calls.keys() | history.effects.keys()):
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
