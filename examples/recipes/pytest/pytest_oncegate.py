"""Fixtures of pytest that run Oncegate before the service under test.

Copy this file beside your top conftest.py, and write there:

    pytest_plugins = ["pytest_oncegate"]

- `oncegate_url` is the URL of an Oncegate before the service of your own fixture `service_url`.
- `start_oncegate(upstream)` starts one before a service that the test has started, and returns its URL. It may be called again.
- `oncegate_routes` are the files of routes, which your oncegate.toml includes too: routes.toml in pytest's rootdir. Override it for others.

The program is that of ONCEGATE_BINARY, else `oncegate` on the path. Each Oncegate has a free port and an empty embedded store,
and ends with its test. pytest shows its log if the test fails.
"""

import json
import os
import re
import shutil
import subprocess
import time
import tomllib

import pytest

# A start takes a tenth of a second; a busy machine may need more. At its end Oncegate waits for requests that still run.
START_SECONDS_MAX = 30
END_SECONDS_MAX = 10

# Tables that reach systems of production.
PRODUCTION = ["cache", "consumers", "events", "services", "telemetry"]

# The line of the log, as JSON or as text.
READY = re.compile(r'\bready\b.*?\blisten"?[=:]"?([^\s",]+)')


def _program():
    program = os.environ.get("ONCEGATE_BINARY", "oncegate")
    if found := shutil.which(program):
        return found
    return pytest.fail(f"there is no program {program}: put it on the PATH, or set ONCEGATE_BINARY", pytrace=False)


def _wait_until_ready(process, log):
    until = time.monotonic() + START_SECONDS_MAX
    while process.poll() is None and time.monotonic() < until:
        if ready := READY.search(log.read_text()):
            return f"http://{ready[1]}"
        time.sleep(0.02)
    problem = "is not ready" if process.poll() is None else f"ended with {process.returncode}"
    return pytest.fail(f"Oncegate {problem}; its log:\n{log.read_text()}", pytrace=False)


def _configuration(routes):
    for file in routes:
        try:
            has = tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, tomllib.TOMLDecodeError):
            # Oncegate says what is wrong.
            continue
        for table in PRODUCTION:
            if table in has:
                pytest.fail(f"{file} has {table}: tests would reach what it names; move it to oncegate.toml", pytrace=False)
    return f"include = {json.dumps([str(file) for file in routes])}"


@pytest.fixture
def oncegate_routes(pytestconfig):
    return [pytestconfig.rootpath / "routes.toml"]


@pytest.fixture
def start_oncegate(request, tmp_path_factory, oncegate_routes):
    started = []

    def start(upstream):
        folder = tmp_path_factory.mktemp("oncegate")
        log = folder / "oncegate.log"
        config = folder / "oncegate.toml"
        config.write_text(_configuration(oncegate_routes), encoding="utf-8")
        command = [_program(), "run", "--config", config, "--upstream", upstream]
        command += ["--store", f"sqlite:{folder}/oncegate.db", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
        # The level of the line that says that it is ready.
        environment = os.environ | {"ONCEGATE_LOG": "info", "OTEL_SDK_DISABLED": "true"}
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment)
        started.append((process, log))
        return _wait_until_ready(process, log)

    yield start
    for process, log in reversed(started):
        process.terminate()
        try:
            process.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        request.node.add_report_section("teardown", "log of Oncegate", log.read_text())


@pytest.fixture
def oncegate_url(start_oncegate, service_url):
    return start_oncegate(service_url)
