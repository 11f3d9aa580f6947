"""The applications' packages and processes."""

import os
import pathlib
import socket
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", HERE.parent.parent / "target")).resolve()
APPS = TARGET / "apps"
BINARY = os.environ.get("ONCEGATE_BINARY", TARGET / "debug" / "oncegate")
SECONDS_MAX = 20
NODE_PACKAGES = [
    "@apollo/client@4.3.8", "@apollo/server@5.5.1", "@bufbuild/protobuf@2.17.0", "@connectrpc/connect@2.2.0",
    "@connectrpc/connect-node@2.2.0", "express@5.1.0", "graphql@16.15.0", "method-override@3.0.0", "rxjs@7.8.2",
]


def install(node_packages=tuple(NODE_PACKAGES), folder=APPS, requirements=HERE / "requirements.txt"):
    """Installs the packages of both languages below target, once."""
    wanted = requirements.read_text() + "\n".join(node_packages)
    stamp = folder / "installed"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    pip = [folder / "venv/bin/pip", "install", "--quiet", "--disable-pip-version-check", "-r", requirements]
    subprocess.run(pip, check=True)
    if node_packages:
        npm = ["npm", "install", "--prefix", folder, "--no-save", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
        subprocess.run([*npm, *node_packages], check=True)
    stamp.write_text(wanted)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def environment():
    """The environment of an application, in which Node finds its packages."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ONCEGATE_")}
    return clean | {"NODE_PATH": str(APPS / "node_modules"), "PYTHONDONTWRITEBYTECODE": "1"}


class Process:
    """A process of our own, which ends with the block. Its output is in a file."""

    def __init__(self, command, log, folder):
        self.command, self.log, self.folder = command, log, folder

    def __enter__(self):
        with open(self.log, "w", encoding="utf-8") as out:
            self.running = subprocess.Popen(self.command, cwd=self.folder, env=environment(), stdout=out, stderr=out)
        return self

    def __exit__(self, *_):
        self.running.terminate()
        try:
            self.running.wait(SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.running.kill()
            self.running.wait()

    def wait_for(self, port):
        """Waits until it accepts connections."""
        deadline = time.monotonic() + SECONDS_MAX
        while self.running.poll() is None and time.monotonic() < deadline:
            try:
                return socket.create_connection(("127.0.0.1", port), 1).close()
            except OSError:
                time.sleep(0.05)
        sys.exit(f"{self.command[0]} does not start: see {self.log}")
