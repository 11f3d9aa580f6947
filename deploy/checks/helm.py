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

sys.path.insert(0, sys.argv[1])
# No folder of its own for it.
sys.dont_write_bytecode = True
from values_table import leaves  # noqa: E402 # it is beside the charts

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
POD_VALUES = {
    "commonLabels": {"team": "pay"},
    "securityContext": {"runAsUser": 10001},
    "resources": {"limits": {"memory": "1Gi"}},
    "startupProbe": {"failureThreshold": 900},
    "readinessProbe": {"httpGet": {"path": "/healthz"}},
    "livenessProbe": {"timeoutSeconds": 9},
    "containerPorts": {"http": 9080, "admin": 9081},
    "drain": {"delaySeconds": 10, "timeoutSeconds": 90, "spareSeconds": 20},
    "extraEnv": [{"name": "SSL_CERT_FILE", "value": "/ca/ca.pem"}],
    "extraEnvFrom": [{"secretRef": {"name": "webhooks"}}],
    "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
    "extraVolumeMounts": [{"name": "ca", "mountPath": "/ca"}],
    "imagePullSecrets": [{"name": "registry"}],
    "migrate": {"enabled": True, "deadlineSeconds": 600},
    "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
    "tls": {"secretName": "pay-tls"},
}
CONTAINER = {"name": "wait", "image": "busybox:1.37", "command": ["true"]}

# Each value of values.yaml is in one of these, and changes what is rendered.
RIGHT = {
    "least": LEAST,
    "own-secret": {
        "upstream": "h2c://payments:3000",
        "secrets": {**SECRETS, "fingerprintSecret": "not a secret at all"},
        "config": {"service": "payments"},
        "image": {"repository": "registry.example/oncegate", "tag": "0.1.0-1", "pullPolicy": "Always"},
        "fullnameOverride": "payments-gate",
        "serviceAccount": {"create": False, "name": "mine"},
        "podDisruptionBudget": {"minAvailable": "50%"},
        "networkPolicy": {"enabled": False},
        "replicaCount": 3,
        "service": {"type": "NodePort"},
        "prometheusRule": {"enabled": True, "runbookUrl": "https://git.example/docs/runbooks/{name}.md"},
    },
    "all": {
        **LEAST,
        **POD_VALUES,
        "image": {"digest": "sha256:" + "0" * 64},
        "nameOverride": "gate",
        "config": {
            "top": 'trusted_proxies = ["10.20.0.0/24"]',
            "store": "max_connections = 16",
            "tables": '[cache]\nmemory = "32MiB"\n\n[[routes]]\nname = "pay"\npath = "/pay"\nunknown_statuses = ["5xx"]\n',
        },
        "serviceAccount": {"annotations": {"a": "b"}},
        "service": {"type": "LoadBalancer", "port": 443, "annotations": {"a": "b"}, "loadBalancerSourceRanges": ["198.51.100.0/24"]},
        "autoscaling": {"enabled": True, "minReplicas": 3, "maxReplicas": 6, "targetCPUUtilizationPercentage": 80},
        "podDisruptionBudget": {"maxUnavailable": 2},
        "ingress": {
            "enabled": True,
            "className": "nginx",
            "annotations": {"a": "b"},
            "hosts": [{"host": "pay.example"}, {"host": "a.example", "paths": [{"path": "/v1", "pathType": "Exact"}]}],
            "tls": [{"secretName": "pay-tls", "hosts": ["pay.example"]}],
        },
        "httpRoute": {
            "enabled": True,
            "annotations": {"a": "b"},
            "parentRefs": [{"name": "public", "namespace": "gateways", "sectionName": "https"}],
            "hostnames": ["pay.example"],
            "rules": [{"timeouts": {"request": "60s"}}, {"backendRefs": [{"name": "other", "port": 80}]}],
        },
        "networkPolicy": {"admin": {"from": [{"podSelector": {}}]}},
        "podMonitor": {"enabled": True, "interval": "30s", "labels": {"release": "prometheus"}},
        "dashboards": {"enabled": True, "labels": {"grafana_dashboard": "yes"}, "annotations": {"grafana_folder": "Oncegate"}},
        "podAnnotations": {"a": "b"},
        "podLabels": {"a": "b"},
        "podSecurityContext": {"fsGroup": 10001},
        "nodeSelector": {"a": "b"},
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        "topologySpreadConstraints": [{"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
        "priorityClassName": "high",
        "initContainers": [CONTAINER],
        "extraContainers": [{**CONTAINER, "name": "beside"}],
        "testImage": "registry.example/curl:8",
    },
    "services": {"existingSecret": "oncegate", "config": TABLES, "podDisruptionBudget": {"enabled": False}},
    "embedded": {
        "upstream": "http://payments:3000",
        "secrets": {"adminToken": SECRETS["adminToken"]},
        "replicaCount": 1,
        "persistence": {
            "enabled": True,
            "storageClass": "fast",
            "accessModes": ["ReadWriteOncePod"],
            "size": "20Gi",
            "annotations": {"a": "b"},
        },
        "serviceMonitor": {"enabled": True, "interval": "30s", "labels": {"release": "prometheus"}},
    },
    "existing": {
        "existingConfigMap": "mine",
        "existingSecret": "oncegate",
        "replicaCount": 1,
        "persistence": {"enabled": True, "existingClaim": "mine"},
    },
    "sidecar": {
        **POD_VALUES,
        "mode": "sidecar",
        "upstream": "http://127.0.0.1:3000",
        "existingSecret": "oncegate",
        "networkPolicy": {"admin": {"from": [{"podSelector": {}}]}},
        "podMonitor": {"enabled": True},
    },
    "sidecar-alone": {**LEAST, "mode": "sidecar", "upstream": "http://127.0.0.1:3000", "serviceMonitor": {"enabled": True}},
}

SIDECAR = RIGHT["sidecar-alone"]
EMBEDDED = {**RIGHT["embedded"], "serviceMonitor": {}}
# Wrong values, each with what its message has.
WRONG = [
    # An unknown name, with its path.
    ({**LEAST, "replica": 3}, "'replica' not allowed"),
    ({**LEAST, "ingress": {"class": "nginx"}}, "/ingress", "'class' not allowed"),
    ({**LEAST, "service": "pay"}, "/service", "object"),
    ({**LEAST, "mode": "daemon"}, "/mode"),
    ({**LEAST, "upstream": "payments:3000"}, "/upstream"),
    ({"upstream": "http://a", "secrets": {**SECRETS, "adminToken": "short"}}, "/secrets/adminToken"),
    ({**LEAST, "prometheusRule": {"runbookUrl": "https://git.example/runbooks"}}, "/prometheusRule/runbookUrl"),
    ({**LEAST, "drain": {"timeoutSeconds": 0}}, "/drain/timeoutSeconds"),
    ({**EMBEDDED, "persistence": {"enabled": True, "accessModes": ["ReadOnlyMany"]}}, "/persistence/accessModes"),
    # Something is missing.
    ({"existingSecret": "oncegate"}, "upstream: set"),
    ({"upstream": "http://a"}, "existingSecret, secrets.storeUrl or persistence"),
    ({"upstream": "http://a", "secrets": {"storeUrl": SECRETS["storeUrl"]}}, "secrets.adminToken"),
    ({**LEAST, "ingress": {"enabled": True}}, "ingress.hosts"),
    ({**LEAST, "httpRoute": {"enabled": True}}, "httpRoute.parentRefs"),
    ({"upstream": "http://a", "secrets": SECRETS, "migrate": {"enabled": True}}, "migrate:", "existingSecret"),
    ({**LEAST, "autoscaling": {"enabled": True}, "resources": {"requests": {"cpu": None}}}, "resources.requests.cpu"),
    # Two values contradict each other, or one would change nothing.
    ({"existingSecret": "oncegate", "config": {**TABLES, "service": "pay"}}, "config.service"),
    ({**LEAST, "secrets": SECRETS}, "existingSecret: the values of secrets"),
    ({**LEAST, "existingConfigMap": "mine"}, "existingConfigMap: upstream and config"),
    *[
        ({"existingSecret": "oncegate", "existingConfigMap": "mine", "config": {key: value}}, "existingConfigMap: upstream and config")
        for key, value in {**TABLES, "service": "pay", "top": "allow = []", "store": "timeout = '1s'", "tables": ""}.items()
    ],
    ({**SIDECAR, "upstream": "", "existingConfigMap": "mine"}, "networkPolicy.enabled"),
    ({**EMBEDDED, "replicaCount": 2}, "persistence:", "replicaCount"),
    ({**EMBEDDED, "autoscaling": {"enabled": True}}, "persistence:", "autoscaling"),
    ({**EMBEDDED, "secrets": SECRETS}, "persistence:", "secrets.storeUrl"),
    ({**EMBEDDED, "existingSecret": "oncegate", "secrets": {}, "migrate": {"enabled": True}}, "migrate:", "at its start"),
    ({**LEAST, "autoscaling": {"enabled": True, "minReplicas": 20}}, "minReplicas is above"),
    ({**LEAST, "podDisruptionBudget": {"minAvailable": 0, "maxUnavailable": 1}}, "podDisruptionBudget:"),
    ({**LEAST, "podMonitor": {"enabled": True}, "serviceMonitor": {"enabled": True}}, "serviceMonitor:", "twice"),
    ({**LEAST, "containerPorts": {"http": 8081}}, "containerPorts:"),
    ({**LEAST, "terminationGracePeriodSeconds": 90}, "terminationGracePeriodSeconds:", "drain.spareSeconds"),
    ({**LEAST, "podLabels": {"app.kubernetes.io/name": "x"}}, "podLabels:"),
    ({**LEAST, "commonLabels": {"app.kubernetes.io/instance": "x"}}, "commonLabels:"),
    ({**LEAST, "tls": {"secretName": "a"}, "config": {"tables": '[tls]\nclient = "optional"'}}, "tls.secretName: `tls` is also in the TOML"),
    ({**LEAST, "service": {"loadBalancerSourceRanges": ["198.51.100.0/24"]}}, "service.loadBalancerSourceRanges:", "service.type"),
    # A sidecar runs in the pods of another chart.
    *[({**SIDECAR, name: {"enabled": True}}, f"{name}: a sidecar") for name in ("autoscaling", "persistence", "ingress", "httpRoute")],
    *[
        ({**SIDECAR, name: RIGHT["all"][name]}, f"{name}: a sidecar")
        for name in (
            *("podAnnotations", "podLabels", "nodeSelector", "tolerations", "affinity"),
            *("priorityClassName", "initContainers", "extraContainers", "imagePullSecrets"),
        )
    ],
    *[
        ({**SIDECAR, name: {key: RIGHT[way][name][key]}}, f"{name}.{key}: a sidecar")
        for way, name, key in (
            *(("own-secret", "serviceAccount", "name"), ("all", "serviceAccount", "annotations"), ("all", "service", "annotations")),
            *(("all", "service", "loadBalancerSourceRanges"), ("own-secret", "podDisruptionBudget", "minAvailable")),
            ("all", "podDisruptionBudget", "maxUnavailable"),
        )
    ],
]


# Wrong configurations, in the same way.
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
    (output / f"helm-{name}.yaml").write_text(yaml.safe_dump_all(documents), encoding="utf-8")
    for document in documents:
        if document["kind"] == "ConfigMap" and "oncegate.toml" in document["data"]:
            (output / f"helm-{name}.toml").write_text(document["data"]["oncegate.toml"], encoding="utf-8")


def check_refused(chart, values, *parts):
    try:
        render(chart, values)
    except helm.HelmError as error:
        assert all(part in str(error) for part in parts), (values, parts, str(error))
    else:
        sys.exit(f"the chart takes {values}")


def without(values, path):
    """The values without the one at the path, if they have it."""
    key, *rest = path
    if key not in values:
        return None
    if not rest:
        return {name: value for name, value in values.items() if name != key}
    inner = without(values[key], rest)
    return None if inner is None else {**values, key: inner}


def check_effects(chart):
    """A value that changes nothing in any way of the chart is none: a template has forgotten it."""
    rendered = {name: render(chart, values) for name, values in RIGHT.items()}

    def has_effect(name, less):
        try:
            return render(chart, less) != rendered[name]
        except helm.HelmError:
            # Required there.
            return True

    for path in leaves():
        changed = {name: less for name, values in RIGHT.items() if (less := without(values, path)) is not None}
        assert changed, f"no way of rendering the chart has {'.'.join(path)}"
        assert any(has_effect(*one) for one in changed.items()), f"{'.'.join(path)} changes nothing"


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
    texts = {d["data"]["oncegate.toml"] for d in documents if d["kind"] == "ConfigMap" and "oncegate.toml" in d["data"]}
    assert len(texts) == 1, "the job and the pods have one configuration"


def check_usual_names(chart, folder):
    """The chart takes the values of a chart that `helm create` writes, by the same names, and makes of them what that one would."""
    with helm.Chart.create("usual", str(folder)) as usual:
        values = usual.values
    # Oncegate uses no API of Kubernetes, and has volumes of its own beside the extra ones.
    del values["serviceAccount"]["automount"], values["volumes"], values["volumeMounts"]
    for name in ("autoscaling", "ingress", "httpRoute"):
        values[name]["enabled"] = True
    documents = {document["kind"]: document["spec"] for document in render(chart, {**values, **LEAST}) if "spec" in document}
    assert documents["HorizontalPodAutoscaler"]["maxReplicas"] == values["autoscaling"]["maxReplicas"], documents
    assert documents["Ingress"]["rules"][0]["host"] == values["ingress"]["hosts"][0]["host"], documents
    assert documents["HTTPRoute"]["rules"][0]["matches"] == values["httpRoute"]["rules"][0]["matches"], documents
    assert pod(render(chart, {**values, **LEAST}))["containers"][0]["image"].startswith(values["image"]["repository"]), documents


def check_selectors(documents):
    """The Service finds the pods of the Deployment, and neither those of the job nor that of `helm test`."""
    [selector] = [d["spec"]["selector"] for d in documents if d["kind"] == "Service"]
    for document in documents:
        if document["kind"] in ("Deployment", "Job", "Pod"):
            labels = (document if document["kind"] == "Pod" else document["spec"]["template"])["metadata"]["labels"]
            assert (selector.items() <= labels.items()) == (document["kind"] == "Deployment"), (document["kind"], labels)


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
        check_refused(chart, {**LEAST, "config": config}, *parts)


def check_notes(chart):
    """The notes say what is missing: an image in a registry, and the addresses of a proxy before Oncegate."""
    behind = {**LEAST, "httpRoute": {"enabled": True, "parentRefs": [{"name": "public"}]}}
    for values, *missing in [
        (LEAST, "image.repository"),
        (behind, "image.repository", "trusted_proxies"),
        ({**behind, "config": {"top": 'trusted_proxies = ["10.20.0.0/24"]'}}, "image.repository"),
        (RIGHT["own-secret"],),
        (SIDECAR, "image.repository"),
    ]:
        with helm.Chart.load(str(chart)) as loaded:
            notes = loaded.render(values, name="pay", namespace="payments")["oncegate/templates/NOTES.txt"]
        assert [part for part in ("image.repository", "trusted_proxies") if part in notes] == sorted(missing), (values, notes)


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
    expected = {"ConfigMap", "Deployment", "Job", "NetworkPolicy", "PodDisruptionBudget", "Service", "ServiceAccount", "Pod", "Ingress"}
    assert kinds == expected | {"HorizontalPodAutoscaler", "HTTPRoute", "PodMonitor", "PrometheusRule"}, kinds
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
    check_notes(chart)

    check_selectors(everything)
    check_usual_names(chart, output)
    check_effects(chart)
    for values, *parts in WRONG:
        check_refused(chart, values, *parts)

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
