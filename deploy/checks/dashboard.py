"""Each panel's PromQL must parse, and each metric must be one that an alert or the list below knows: a misspelt one shows
nothing, and nobody notices.

    python3 dashboard.py DASHBOARD.json ALERTS.yml
"""

import json
import re
import subprocess
import sys
import tempfile

METRICS = {
    "oncegate_admin_denied_total",
    "oncegate_tokens_refused_total",
    "oncegate_build_info",
    "oncegate_cache_hits_total",
    "oncegate_config_last_reload_successful",
    "oncegate_consumer_connected",
    "oncegate_consumer_oldest_seconds",
    "oncegate_consumer_partitions",
    "oncegate_consumer_stuck_partitions",
    "oncegate_events_dead",
    "oncegate_events_oldest_seconds",
    "oncegate_held_body_bytes",
    "oncegate_in_flight",
    "oncegate_issuer_unreachable",
    "oncegate_jobs_dead",
    "oncegate_keys",
    "oncegate_keys_reaped_total",
    "oncegate_late_completions_total",
    "oncegate_overloaded_total",
    "oncegate_rate_limited_total",
    "oncegate_reconcile_total",
    "oncegate_request_duration_seconds_bucket",
    "oncegate_requests_total",
    "oncegate_reservations_total",
    "oncegate_route_identities_info",
    "oncegate_store_breaker_open",
    "oncegate_store_clock_jumps_total",
    "oncegate_store_duration_seconds_bucket",
    "oncegate_store_duration_seconds_count",
    "oncegate_store_errors_total",
    "oncegate_store_primaries",
    "oncegate_unguarded_keys_total",
    "oncegate_unguarded_total",
    "oncegate_upstream_duration_seconds_bucket",
    "oncegate_zombie_keys_total",
}


def main():
    dashboard = json.load(open(sys.argv[1], encoding="utf-8"))
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    texts = [(panel["title"], target["expr"]) for panel in panels for target in panel["targets"]]
    texts += [(variable["name"], variable["definition"]) for variable in dashboard["templating"]["list"] if "definition" in variable]
    texts.append(("the alerts", open(sys.argv[2], encoding="utf-8").read()))
    wrong = [
        f"{title}: no metric of Oncegate is called {name}"
        for title, text in texts
        for name in re.findall(r"\boncegate_[a-z0-9_]+", text)
        if name not in METRICS and f"{name}:" not in text and not name.startswith("oncegate_replays")
    ]
    wrong += [
        f"{panel['title']}: not by service: {target['expr']}"
        for panel in panels
        for target in panel["targets"]
        if len(re.findall(r"\b(?:sum|max|min|count)\b", target["expr"])) != target["expr"].count(" by (service")
    ]
    ids = [panel["id"] for panel in dashboard["panels"]]
    if len(set(ids)) != len(ids):
        wrong.append("two panels have one id")
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        if place["x"] + place["w"] > 24:
            wrong.append(f"{panel['title']}: it stands out of the grid")
    rules = "groups:\n- name: panels\n  rules:\n"
    for number, (_, expression) in enumerate(
        (panel["title"], target["expr"]) for panel in panels for target in panel["targets"]
    ):
        expression = expression.replace("$__rate_interval", "5m")
        rules += f"  - record: panel:{number}\n    expr: {json.dumps(expression)}\n"
    with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
        file.write(rules)
        file.flush()
        checked = subprocess.run(["promtool", "check", "rules", file.name], capture_output=True, text=True, check=False)
    if checked.returncode:
        wrong.append(checked.stdout + checked.stderr)
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"{sys.argv[1]}: {len(panels)} panels, {len(texts) - 1} queries")


main()
