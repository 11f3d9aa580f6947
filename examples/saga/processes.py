"""The processes of a run: each on a port of its own, killed and started again, and ended with the run."""

import os
import pathlib
import pwd
import random
import shutil
import socket
import subprocess
import time

# Longer than anything takes on a slow machine.
SECONDS_MAX = 60


def free_port():
    """A port below those that the system hands out, so that nobody takes it while its process is away."""
    while True:
        port = random.randrange(10_000, 30_000)
        try:
            socket.create_server(("127.0.0.1", port)).close()
            return port
        except OSError:
            continue


def accepts(port):
    """Whether something listens on this port."""
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    except OSError:
        return False


class Process:
    """A process in a `with` block. It is ready once `is_ready` says so; by default at once."""

    def __init__(self, name, command, folder, is_ready=lambda: True, environment=None, user=None):
        self.name, self.command, self.log = name, [str(word) for word in command], folder / f"{name}.log"
        self.is_ready, self.environment, self.user = is_ready, environment, user

    def start(self):
        with open(self.log, "ab") as log:
            # In a session of its own, so that Ctrl-C reaches the run alone, which then ends all in its order.
            self.running = subprocess.Popen(
                self.command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, user=self.user, start_new_session=True
            )
        end = time.monotonic() + SECONDS_MAX
        while not self.is_ready():
            if self.running.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{self.name} has not started:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.05)

    def kill(self):
        """As a power cut does, with all processes that it has started."""
        if self.running.poll() is None:
            os.killpg(self.running.pid, 9)
            self.running.wait()

    def stop(self):
        """Lets it end what it has begun."""
        self.running.terminate()
        return self.running.wait(SECONDS_MAX)

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if hasattr(self, "running"):
            self.kill()


def postgres_programs():
    """The folder of the newest PostgreSQL's programs; None if there is none."""
    packaged = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name))
    on_path = shutil.which("initdb")
    return packaged[-1] if packaged else on_path and pathlib.Path(on_path).resolve().parent


def postgres(folder):
    """A new PostgreSQL server. Returns it, not started, and the URL of its database."""
    programs = postgres_programs()
    # The server refuses to run as root.
    user = "postgres" if os.geteuid() == 0 else None
    home = folder / "postgres"
    home.mkdir()
    if user:
        os.chown(home, pwd.getpwnam(user).pw_uid, -1)
    initdb = [programs / "initdb", "--username=oncegate", "--auth=trust", "--encoding=UTF8", "-D", home / "data"]
    subprocess.run(initdb, check=True, stdout=subprocess.DEVNULL, user=user, cwd=home)
    port = free_port()
    command = [programs / "postgres", "-D", home / "data", "-p", port, "-c", "listen_addresses=127.0.0.1", "-k", home]
    question = [programs / "pg_isready", "--quiet", "--host=127.0.0.1", f"--port={port}"]
    server = Process("postgresql", command, folder, lambda: subprocess.run(question).returncode == 0, user=user)
    return server, f"postgres://oncegate@127.0.0.1:{port}/postgres"
