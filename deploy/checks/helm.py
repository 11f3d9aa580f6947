"""Lints the chart, renders it in each of its ways, and sees that wrong values are refused.

    python3 helm.py FOLDER_OF_CHARTS OUTPUT

Manifests go to OUTPUT/*.yaml, configuration files to OUTPUT/*.toml, for whoever checks those.
"""

import pathlib
import shutil
import sys
import tomllib

import helm_python as helm
import yaml

SECRETS = {"storeUrl": "postgres://oncegate:password@db.example/oncegate", "adminToken": "bm90IGEgc2VjcmV0"}
LEAST = {"upstream": "http://payments:3000", "existingSecret": "oncegate"}
ROUTE = {"name": "pay", "path": "/v1/payments", "service": "pay", "key": {"from": ["header:A", "json:/a"], "max_length": 64}}
# Tables as YAML, with integers at several depths, and a text that TOML escapes.
TABLES = {
    "defaults": {"kind": "money", "ttl": "7d", "accepted": 200, "limits": {"live_keys": 100000}},
    "policy": {"ttl_min": "1d", "money": ["pay POST /v1/payments"]},
    "services": [
        {"name": "pay", "host": "pay.example", "upstream": "http://payments:3000"},
        {"name": "orders", "host": ["a.example", "b.example"], "upstream": "http://orders", "defaults": {"ttl": "3d"}},
    ],
    "routes": [
        {**ROUTE, "outcome": [{"pointer": "/code", "equals": 7, "is": "release"}]},
        {"name": "order", "path": "/{*rest}", "service": "orders", "challenge": 'Basic realm="a\\b"'},
    ],
}
# Kinds of the Prometheus operator, whose schemas are not Kubernetes' own.
FOREIGN = {"PodMonitor", "PrometheusRule"}

RIGHT = {
    "least": LEAST,
    "own-secret": {"upstream": "h2c://payments:3000", "secrets": SECRETS},
    "all": {
        **LEAST,
        "image": {"digest": "sha256:" + "0" * 64},
        "imagePullSecrets": [{"name": "registry"}],
        "config": {
            "top": 'trusted_proxies = ["10.20.0.0/24"]',
            "store": "max_connections = 16",
            "tables": '[cache]\nmemory = "32MiB"\n\n[[routes]]\nname = "pay"\npath = "/pay"\nunknown_statuses = ["5xx"]\n',
        },
        "drain": {"delaySeconds": 10, "timeoutSeconds": 90, "spareSeconds": 20},
        "readiness": {"path": "/healthz"},
        "door": {"type": "LoadBalancer", "port": 443, "annotations": {"a": "b"}},
        "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "prometheusRule": {"enabled": True},
        "migrate": {"enabled": True},
        "podAnnotations": {"a": "b"},
        "podLabels": {"a": "b"},
        "nodeSelector": {"a": "b"},
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "affinity": {"podAntiAffinity": {}},
        "extraEnv": [{"name": "SSL_CERT_FILE", "value": "/ca/ca.pem"}],
        "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
        "extraVolumeMounts": [{"name": "ca", "mountPath": "/ca"}],
    },
    "services": {"existingSecret": "oncegate", "config": TABLES},
    "sidecar-alone": {**LEAST, "mode": "sidecar", "upstream": "http://127.0.0.1:3000"},
}

WRONG = {
    "a misspelt key": {**LEAST, "replica": 3},
    "no upstream": {"existingSecret": "oncegate"},
    "the name of a service without an upstream": {"service": "pay", "existingSecret": "oncegate", "config": TABLES},
    "an upstream without a scheme": {**LEAST, "upstream": "payments:3000"},
    "a short token": {"upstream": "http://a", "secrets": {**SECRETS, "adminToken": "short"}},
    "no secret at all": {"upstream": "http://a"},
    "another mode": {**LEAST, "mode": "daemon"},
    "a runbook address without a name": {**LEAST, "prometheusRule": {"runbookUrl": "https://git.example/runbooks"}},
    "no time to drain": {**LEAST, "drain": {"timeoutSeconds": 0}},
    "a job that cannot read its secret": {"upstream": "http://a", "secrets": SECRETS, "migrate": {"enabled": True}},
}


# Wrong configurations, each with what its message has.
ALSO_TOML = "is also in the TOML"
REFUSED = [
    ({"routes": [ROUTE, {**ROUTE, "mehtods": ["POST"]}]}, "/config/routes/1", "mehtods"),
    ({"routes": [{**ROUTE, "key": {"max_length": "64"}}]}, "/config/routes/0/key/max_length", "integer"),
    ({"services": [{"name": "a", "upstream": "http://a", "defaults": {"tll": "1d"}}]}, "/config/services/0/defaults", "tll"),
    ({"policy": {"ttl_max": "1d"}}, "/config/policy", "ttl_max"),
    ({"routes": [ROUTE], "tables": '# [x]\n[[routes]]\nname = "a"\npath = "/a"\n'}, "config.routes", ALSO_TOML),
    ({"defaults": {"ttl": "1d"}, "tables": ' [ "defaults".retry ]\n'}, "config.defaults", ALSO_TOML),
    ({"policy": {"ttl_min": "1d"}, "store": "[policy]\n"}, "config.policy", ALSO_TOML),
    ({"services": TABLES["services"], "top": "services = []\n"}, "config.services", ALSO_TOML),
    ({"services": TABLES["services"]}, "config.routes: config.services is set"),
]


def render(path, values):
    with helm.Chart.load(str(path)) as chart:
        made = chart.render(values, name="pay", namespace="payments")
    return [document for name, text in made.items() if name.endswith(".yaml") for document in yaml.safe_load_all(text) if document]


def write(name, documents, output):
    own = [document for document in documents if document["kind"] not in FOREIGN]
    (output / f"helm-{name}.yaml").write_text(yaml.safe_dump_all(own), encoding="utf-8")
    for document in own:
        if document["kind"] == "ConfigMap":
            (output / f"helm-{name}.toml").write_text(document["data"]["oncegate.toml"], encoding="utf-8")


def pod(documents):
    return next(document for document in documents if document["kind"] == "Deployment")["spec"]["template"]["spec"]


def phases(document):
    """The hooks and the weight of a document; one without hooks comes after all pre- hooks."""
    notes = document["metadata"].get("annotations", {})
    return set(notes.get("helm.sh/hook", "").split(",")) - {""}, int(notes.get("helm.sh/hook-weight", 0))


def check_hooks(documents):
    """What a hook reads is there when the hook runs, also at the first installation."""
    [job] = [document for document in documents if document["kind"] == "Job"]
    hooks, weight = phases(job)
    assert hooks == {"pre-install", "pre-upgrade"}, hooks
    names = {
        volume["configMap"]["name"] for volume in job["spec"]["template"]["spec"]["volumes"] if "configMap" in volume
    }
    for name in names:
        [read] = [d for d in documents if d["kind"] == "ConfigMap" and d["metadata"]["name"] == name]
        assert phases(read)[0] == hooks and phases(read)[1] < weight, (name, phases(read))
    texts = {d["data"]["oncegate.toml"] for d in documents if d["kind"] == "ConfigMap"}
    assert len(texts) == 1, "the job and the pods have one configuration"


def configuration(documents):
    return tomllib.loads(next(d for d in documents if d["kind"] == "ConfigMap")["data"]["oncegate.toml"])


def check_tables(chart):
    """Tables as YAML are in the file, beside those of TOML; wrong ones are refused with their place."""
    made = configuration(render(chart, RIGHT["services"]))
    assert not {"upstream", "service"} & set(made), made
    # As texts: 1 and 1.0 differ.
    assert yaml.safe_dump({name: made[name] for name in TABLES}) == yaml.safe_dump(TABLES), made
    ttl, cache = {"defaults": {"ttl": "3d"}}, {"tables": '[cache]\nmemory = "1MiB"'}
    for config, routes in [({}, ["default"]), (ttl, ["default"]), ({"routes": [ROUTE]}, ["pay"]), ({"tables": ""}, []), ({**ttl, **cache}, [])]:
        made = configuration(render(chart, {**LEAST, "config": config}))
        assert [route["name"] for route in made.get("routes", [])] == routes, (config, made)
        assert ("defaults" in made, "cache" in made) == ("defaults" in config, "tables" in config and config["tables"] != ""), made
    for config, *parts in REFUSED:
        try:
            render(chart, {**LEAST, "config": config})
        except helm.HelmError as error:
            assert all(part in str(error) for part in parts), (config, str(error))
        else:
            sys.exit(f"the chart takes {config}")


def check_open_ports(chart):
    """A sidecar's policy closes the port that Oncegate guards and the admin port, and no other."""
    elsewhere = {"name": "a", "host": "a.example", "upstream": "http://payments:8080"}
    here = {"name": "b", "host": "b.example", "upstream": "http://127.0.0.1:3001"}
    for upstream, guarded, *services in [
        ("http://127.0.0.1:3000", {3000}),
        ("http://127.0.0.1:3000", {3000, 3001}, elsewhere, here),
        ("", {3001}, here),
        ("h2c://127.0.0.1:9000", {9000}),
        ("http://127.0.0.1:8082", {8082}),
        ("http://127.0.0.1", {80}),
        ("https://localhost", {443}),
        ("unix:/run/app.sock", set()),
    ]:
        documents = render(chart, {**LEAST, "mode": "sidecar", "upstream": upstream, "config": {"services": services, "tables": ""}})
        [policy] = [document for document in documents if document["kind"] == "NetworkPolicy"]
        everybody, monitoring = policy["spec"]["ingress"]
        assert "from" not in everybody and monitoring["ports"] == [{"port": 8081}], policy
        is_open = set()
        for ports in everybody["ports"]:
            if ports.get("protocol", "TCP") == "TCP":
                assert ports["port"] <= ports["endPort"], ports
                is_open |= set(range(ports["port"], ports["endPort"] + 1))
        assert set(range(1, 65536)) - is_open == guarded | {8081}, (upstream, everybody)


def main():
    charts, output = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    chart = charts / "oncegate"
    for name, values in RIGHT.items():
        told = helm.lint(str(chart), values, strict=True)
        assert told.get("passed", not told.get("errors")), (name, told)
        write(name, render(chart, values), output)
    everything = render(chart, RIGHT["all"])
    kinds = {document["kind"] for document in everything}
    expected = {"ConfigMap", "Deployment", "Job", "NetworkPolicy", "PodDisruptionBudget", "Service", "ServiceAccount"} | FOREIGN
    assert kinds == expected, kinds
    # The grace period is above both times of the drain together, whatever they are.
    assert pod(everything)["terminationGracePeriodSeconds"] == 120
    rule = next(document for document in everything if document["kind"] == "PrometheusRule")
    rules = yaml.safe_load((chart / "files/alerts.yml").read_text(encoding="utf-8"))
    assert rule["spec"] == rules
    address = "https://git.example/docs/runbooks/{name}.md"
    linked = render(chart, {**LEAST, "prometheusRule": {"enabled": True, "runbookUrl": address}})
    linked = next(document for document in linked if document["kind"] == "PrometheusRule")["spec"]
    for before, after in zip(rules["groups"][0]["rules"], linked["groups"][0]["rules"], strict=True):
        if url := before.get("annotations", {}).get("runbook_url"):
            after["annotations"]["runbook_url"], named = url, after["annotations"]["runbook_url"]
            assert named == address.replace("{name}", url.rpartition("/")[2]), named
    assert linked == rules, "more than the address has changed"
    check_hooks(everything)
    check_tables(chart)
    check_open_ports(chart)

    for name, values in WRONG.items():
        try:
            render(chart, values)
        except helm.HelmError:
            continue
        sys.exit(f"the chart takes {name}")

    # A chart that has this one as a dependency.
    parent = output / "example"
    shutil.copytree(charts / "example", parent)
    shutil.copytree(chart, parent / "charts/oncegate")
    told = helm.lint(str(parent), {}, strict=True)
    assert told.get("passed", not told.get("errors")), told
    documents = render(parent, {})
    write("example", documents, output)
    spec = pod(documents)
    sidecar, application = spec["initContainers"][0], spec["containers"][0]
    assert sidecar["restartPolicy"] == "Always", sidecar
    hook = sidecar["lifecycle"]["preStop"]["exec"]["command"]
    drained = int(hook[-1].rstrip("s"))
    slept = application["lifecycle"]["preStop"]["sleep"]["seconds"]
    # drain_delay + drain_timeout < the application's sleep <= what the hook waits < the grace period
    assert 45 < slept <= drained < spec["terminationGracePeriodSeconds"], (slept, drained, spec)
    # A company's values below a team's: maps merge, lists replace, as those of two files do.
    values = yaml.safe_load((parent / "values.yaml").read_text(encoding="utf-8"))
    values["oncegate"]["config"] = {"defaults": {"kind": "money", "ttl": "3d"}, "routes": TABLES["routes"]}
    (parent / "values.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    team = {"defaults": {"ttl": "7d"}, "routes": [{"name": "refund", "path": "/refunds"}]}
    made = configuration(render(parent, {"oncegate": {"config": team}}))
    assert (made["defaults"], made["routes"]) == ({"kind": "money", "ttl": "7d"}, team["routes"]), made
    print(f"{chart}: {len(RIGHT) + 1} ways rendered, {len(WRONG) + len(REFUSED)} wrong values refused")


main()
