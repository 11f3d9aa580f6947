"""Runs what a rendered chart runs: the program with the chart's configuration, and the request of `helm test`.

    python3 helm_test.py ONCEGATE MANIFESTS    MANIFESTS are the chart's with the embedded store
"""

import pathlib
import socket
import subprocess
import sys
import tempfile
import urllib.parse

import yaml


def free_ports(number):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def find(manifests, kind):
    return next(manifest for manifest in manifests if manifest["kind"] == kind)


def main():
    manifests = list(yaml.safe_load_all(pathlib.Path(sys.argv[2]).read_text(encoding="utf-8")))
    [container] = find(manifests, "Pod")["spec"]["containers"]
    services = {f"{one['metadata']['name']}:{one['spec']['ports'][0]['port']}" for one in manifests if one["kind"] == "Service"}
    *options, url = container["command"] + container["args"]
    address = urllib.parse.urlsplit(url).netloc
    assert address in services, (url, services)
    text = find(manifests, "ConfigMap")["data"]["oncegate.toml"]
    client, admin = free_ports(2)
    command = [*options, url.replace(address, f"127.0.0.1:{client}")]
    with tempfile.TemporaryDirectory() as folder:
        home = pathlib.Path(folder)
        for name, secret in find(manifests, "Secret")["stringData"].items():
            (home / name).write_text(secret, encoding="utf-8")
        # The paths and the ports of the pod become those of this machine.
        for inside, outside in [
            ("/run/secrets/oncegate/", f"{home}/"),
            ("/var/lib/oncegate/", f"{home}/"),
            ("0.0.0.0:8080", f"127.0.0.1:{client}"),
            ("0.0.0.0:8081", f"127.0.0.1:{admin}"),
            ('drain_delay = "5s"', 'drain_delay = "0s"'),
        ]:
            assert inside in text, (inside, text)
            text = text.replace(inside, outside)
        file = home / "oncegate.toml"
        file.write_text(text, encoding="utf-8")
        with subprocess.Popen([sys.argv[1], "run", "-c", file], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as program:
            said = []
            for line in program.stdout:
                said.append(line)
                if '"message":"ready"' in line:
                    break
            request = subprocess.run(command, capture_output=True, text=True, check=False)
            program.terminate()
            said += program.stdout.readlines()
    if request.returncode:
        sys.exit(f"`helm test` fails: {command}: {request.stderr}\n{''.join(said)}")
    # Without the program, the same request fails.
    if not subprocess.run(command, capture_output=True, check=False).returncode:
        sys.exit(f"`helm test` does not notice that nobody listens: {command}")
    print("helm test: answered by the program with the chart's configuration")


main()
