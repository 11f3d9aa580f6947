"""Each panel's PromQL must parse, and each metric must be one of docs/metrics.md: a misspelt one shows nothing, and nobody
notices. A dashboard must also be fit for a gallery: it asks for its data source, and has nothing of one installation.

    python3 dashboard.py METRICS.md ALERTS.yml DASHBOARD.json...
"""

import json
import re
import subprocess
import sys
import tempfile

DATA_SOURCE = "${DS_PROMETHEUS}"


def gallery_faults(dashboard):
    panels = {panel["type"] for panel in dashboard["panels"]} - {"row"}
    required = {part["id"] for part in dashboard["__requires"]}
    # A second place of the name: files that Grafana reads by itself have no inputs, and then the variable is the source.
    names = [variable["name"] for variable in dashboard["templating"]["list"] if variable["type"] == "datasource"]
    yield from (f"__requires lacks {missing}" for missing in (panels | {"grafana", "prometheus"}) - required)
    if [given["name"] for given in dashboard["__inputs"]] != ["DS_PROMETHEUS"] or names != ["DS_PROMETHEUS"]:
        yield "the data source is no input DS_PROMETHEUS"
    if dashboard["id"] is not None:
        yield "it has the id of one installation"
    if not dashboard["description"] or "oncegate" not in dashboard["tags"]:
        yield "it has no description, or not the tag oncegate"
    yield from (
        f"{name}: a data source of one installation"
        for name in re.findall(r'"uid": "([^"]+)"', json.dumps(dashboard))
        if name not in (DATA_SOURCE, "-- Grafana --", dashboard["uid"])
    )
    for variable in dashboard["templating"]["list"]:
        if variable["current"].get("value", ["$__all"]) != ["$__all"]:
            yield f"{variable['name']}: a value of one installation"


def faults(dashboard, names):
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    queries = [(panel["title"], target["expr"]) for panel in panels for target in panel["targets"]]
    variables = [(variable["name"], variable["definition"]) for variable in dashboard["templating"]["list"] if "definition" in variable]
    for title, text in queries + variables:
        yield from (f"{title}: no metric of Oncegate is called {name}" for name in metrics(text) - names)
    for title, text in queries:
        if len(re.findall(r"\b(?:sum|max|min|count)\b", text)) != text.count(" by (service"):
            yield f"{title}: not by service: {text}"
    ids = [panel["id"] for panel in dashboard["panels"]]
    if len(set(ids)) != len(ids):
        yield "two panels have one id"
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        if place["x"] + place["w"] > 24:
            yield f"{panel['title']}: it stands out of the grid"
    rules = "groups:\n- name: panels\n  rules:\n"
    for number, (_, expression) in enumerate(queries):
        expression = expression.replace("$__rate_interval", "5m")
        rules += f"  - record: panel:{number}\n    expr: {json.dumps(expression)}\n"
    with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
        file.write(rules)
        file.flush()
        checked = subprocess.run(["promtool", "check", "rules", file.name], capture_output=True, text=True, check=False)
    if checked.returncode:
        yield checked.stdout + checked.stderr
    yield from gallery_faults(dashboard)


def metrics(text):
    """The metrics in a query, without the ends that a histogram's series have; a rule's name has a colon behind it."""
    return {re.sub(r"_(bucket|count|sum)$", "", name) for name in re.findall(r"\boncegate_[a-z0-9_]+\b(?!:)", text)}


def main():
    documented, alerts, *dashboards = sys.argv[1:]
    names = metrics(open(documented, encoding="utf-8").read())
    wrong = [f"the alerts: no metric of Oncegate is called {name}" for name in metrics(open(alerts, encoding="utf-8").read()) - names]
    for path in dashboards:
        dashboard = json.load(open(path, encoding="utf-8"))
        wrong += [f"{path}: {fault}" for fault in faults(dashboard, names)]
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"{len(dashboards)} dashboards")


main()
