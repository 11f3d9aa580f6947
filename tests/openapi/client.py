"""Generates a client from the document that an admin listener serves, and uses it. tests/operations/openapi.rs runs it.

    client.py ADDRESS FOLDER    there are three unknown keys at the listener; the client is written to FOLDER
"""

import importlib
import json
import pathlib
import re
import subprocess
import sys
import urllib.request

import jsonschema

ADDRESS, FOLDER = f"http://{sys.argv[1]}", pathlib.Path(sys.argv[2])
DOCUMENT = json.load(urllib.request.urlopen(f"{ADDRESS}/api/v1/openapi.json"))


def generate():
    (FOLDER / "openapi.json").write_text(json.dumps(DOCUMENT))
    (FOLDER / "settings.json").write_text('{"post_hooks": []}')
    generator = pathlib.Path(sys.executable).parent / "openapi-python-client"
    ended = subprocess.run(
        [generator, "generate", "--path", "openapi.json", "--meta", "none", "--output-path", "oncegate_admin"]
        + ["--config", "settings.json", "--fail-on-warning"],
        cwd=FOLDER,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    sys.path.insert(0, str(FOLDER))


def operation_of(request):
    """The operation of a request. A path without parameters comes before one with them."""
    for path in sorted(DOCUMENT["paths"], key=lambda path: "{" in path):
        if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", path), request.url.path):
            return DOCUMENT["paths"][path][request.method.lower()]
    raise AssertionError(request.url)


# Answers that may have members that the document does not name.
OPEN = {"compareRequest", "explainRequest", "getDocument", "getReadiness"}
VALIDATED = set()


def validate(response):
    """Checks a response by the document: its status, its media type and its body, which has no member that is not there."""
    response.read()
    operation = operation_of(response.request)
    answer = operation["responses"][str(response.status_code)]
    media = answer["content"][response.headers["content-type"].split(";")[0]]
    VALIDATED.add((operation["operationId"], response.status_code))
    if "json" in response.headers["content-type"]:
        closed = {**media["schema"], "unevaluatedProperties": operation["operationId"] in OPEN}
        jsonschema.Draft202012Validator({**closed, "components": DOCUMENT["components"]}).validate(response.json())
    if response.status_code >= 400:
        assert f"`{response.json()['code']}`" in answer["description"], (response.json(), answer)


def main():
    generate()
    client = importlib.import_module("oncegate_admin").Client(base_url=ADDRESS, httpx_args={"event_hooks": {"response": [validate]}})
    models = importlib.import_module("oncegate_admin.models")
    call = lambda name: importlib.import_module(f"oncegate_admin.api.default.{name}").sync

    # A list by a filter, a page at a time.
    keys, cursor = [], {}
    while True:
        page = call("list_keys")(client=client, state=models.ListKeysState.UNKNOWN, route="pay", limit=2, **cursor)
        assert isinstance(page, models.KeyList) and len(page.keys) <= 2
        keys += page.keys
        if page.next_cursor is None:
            break
        cursor = {"cursor": page.next_cursor}
    assert [key.key for key in keys] == ["k-0", "k-1", "k-2"] and {key.cause for key in keys} == {"broken"}, keys
    assert call("list_keys")(client=client, key="k-1").keys == [keys[1]]

    # One of them: shown, resolved, and shown again.
    key = call("get_key")(keys[1].id, client=client)
    assert isinstance(key, models.KeyDetails) and key.state == "unknown" and key.created_at == keys[1].created_at
    body = models.ResolveKeyBody(outcome=models.ResolveKeyBodyOutcome.COMPLETED, status=201, body="paid", note="seen at the service")
    change = call("resolve_key")(key.id, client=client, body=body, x_oncegate_actor="alice")
    assert isinstance(change, models.KeyChange) and (change.before, change.after) == ("unknown", "completed"), change
    key = call("get_key")(key.id, client=client)
    assert key.response.status == 201 and key.response.body_bytes == 4, key
    assert [(entry.action, entry.note) for entry in key.audit] == [("resolve", "seen at the service")], key.audit

    # Problems are typed errors.
    problem = call("get_key")("0" * 64, client=client)
    assert isinstance(problem, models.Problem) and (problem.status, problem.code) == (404, "no-such-key"), problem
    problem = call("resolve_key")(key.id, client=client, body=body)
    assert isinstance(problem, models.Problem) and (problem.code, problem.state) == ("wrong-state", "completed"), problem
    problem = call("list_keys")(client=client, limit=1001)
    assert isinstance(problem, models.Problem) and (problem.code, problem.field) == ("bad-request", "limit"), problem

    # Several keys: counted, then changed.
    selection = {"action": "purge", "filter": {"state": "unknown"}, "accept_risk": True}
    count = call("change_keys")(client=client, body=models.ChangeKeysBody.from_dict(selection))
    assert (count.count, count.changed, count.dry_run) == (2, 0, True), count
    count = call("change_keys")(client=client, body=models.ChangeKeysBody.from_dict({**selection, "expect": 2}))
    assert (count.changed, count.refused_count) == (2, 0), count

    request = models.ExplainRequestBody.from_dict(
        {"method": "POST", "target": "/pay", "headers": {"Idempotency-Key": "k-1", "Authorization": "Bearer alice"}, "body": "{}"}
    )
    assert call("explain_request")(client=client, body=request)["key"] == "k-1"
    assert "is_record" in call("compare_request")(key.id, client=client, body=request)["against"]

    # All that can be asked without a body.
    for path, operations in DOCUMENT["paths"].items():
        if "get" in operations and "{" not in path:
            assert client.get_httpx_client().get(path).status_code == 200, path
    assert client.get_httpx_client().post("/api/v1/events/none/requeue").json()["code"] == "no-such-events"
    print(len(VALIDATED), "answers were as the document says")


main()
