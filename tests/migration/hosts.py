"""Two hosts of the tests of migrations: each has its own network, mount, pid and UTS namespaces and its own software GPU.

A stand-in for ssh enters the other host's namespaces.
"""

import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import threading

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "stage"))
import processes  # noqa: E402
from processes import wait_until  # noqa: E402
from world import demand  # noqa: E402

ROUND = re.compile(r"^ROUND (\d+) (\S+)$", re.M)


class Sshd(threading.Thread):
    """Runs the commands that ssh_client.py sends, in the namespaces of a host."""

    def __init__(self, host):
        super().__init__(daemon=True)
        self.host = host
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(str(host.world.folder / f"{host.name}.sshd"))
        self.socket.listen()
        self.connection = self.last = None
        self.start()

    def run(self):
        while True:
            client, _ = self.socket.accept()
            command, fds, _, _ = socket.recv_fds(client, 4096, 3)
            self.connection = socket.socket(fileno=os.dup(fds[0]))
            words = ["nsenter", "-t", str(self.host.init), "-n", "-u", "-m", "-p", "--", "/bin/sh", "-c", command.decode()]
            process = subprocess.Popen(words, stdin=fds[0], stdout=fds[1], stderr=fds[2],
                                       env={**self.host.world.env, **self.host.env, **self.host.more_env})
            self.host.world.own(process.pid)
            for fd in fds:
                os.close(fd)
            self.last = threading.Thread(target=self.await_end, args=(process, client, self.connection), daemon=True)
            self.last.start()

    def await_end(self, process, client, connection):
        code = process.wait()
        connection.close()
        self.host.world.disown(process.pid)
        try:
            client.send(str(code if code >= 0 else 255).encode())
        except OSError:
            pass
        client.close()

    def cut(self):
        """Cuts the connection of the last command, as a lost network does after its time limits."""
        self.connection.shutdown(socket.SHUT_RDWR)


class Host:
    def __init__(self, world, name, memory="4G"):
        self.world, self.name = world, name
        self.folder = world.folder / name
        self.state, self.gpu = self.folder / "state", self.folder / "gpu"
        mounts = []
        for own, path in ((self.state, world.state), (self.gpu, world.gpu_folder)):
            own.mkdir(parents=True, mode=0o700)
            path.mkdir(exist_ok=True, mode=0o700)
            mounts += [own, path]
        self.env = {"SOFTGPU_MEMORY": memory, "STASIS_MIGRATE_SSH": f"{sys.executable} {world.folder}/ssh"}
        self.process = subprocess.Popen(
            ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "--",
             sys.executable, "-B", HERE / "host_init.py", name, *mounts], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        world.own(self.process.pid)
        demand(self.process.stdout.readline() == "READY\n", f"host {name} did not start")
        self.init = processes.children(self.process.pid)[0]
        self.more_env = {}  # of `stasis receive` on this host
        self.sshd = Sshd(self)

    def begin(self, *words, env=None):
        return self.world.begin("-t", self.init, "-n", "-u", "-m", "-p", "--", self.world.bin / "stasis", *words,
                                program="/usr/bin/nsenter", env={**self.env, **(env or {})})

    def __call__(self, *words, expect=0, env=None):
        done = self.begin(*words, env=env).wait()
        demand(expect is None or done.code == expect, lambda: f"expected exit code {expect}:\n{done}")
        return done

    def job(self, name):
        found = [job for job in self("ps", "-a", "--json").json()["jobs"] if job["id"] == name]
        return found[0] if found else None

    def runs(self, name):
        job = self.job(name)
        return job is not None and job["state"] == "running"

    def rounds(self, name):
        path = self.state / "data" / "jobs" / name / "log"
        return ROUND.findall(path.read_text()) if path.exists() else []

    def images(self):
        folder = self.state / "data" / "images"
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []

    def end(self):
        self.process.stdin.close()
        self.process.wait()
        self.world.disown(self.process.pid)


def await_rounds(host, name, more=3):
    have = len(host.rounds(name))
    wait_until(lambda: len(host.rounds(name)) >= have + more, 60,
               lambda: f"{name} does not go on on {host.name}: {host('ps', '-a').out}")


def check_rounds(*hosts, name="job"):
    """Each round has one result, on whichever host it was computed, and none is missing."""
    results = {}
    for host in hosts:
        for number, checksum in host.rounds(name):
            demand(results.setdefault(int(number), checksum) == checksum, f"round {number} has two results")
    missing = set(range(min(results), max(results) + 1)) - set(results)
    demand(not missing, f"no round {sorted(missing)[:5]}")


def start(host, name="job", memory="64M"):
    host("run", "--job", name, "--", host.world.workloads / "vector", "--memory", memory, "--interval", "50")
    await_rounds(host, name)


def end(*hosts, name="job"):
    for host in hosts:
        if host.runs(name):
            host("kill", name)
            host("wait", name, expect=None)
        # Helpers of a killed restore may hold the job for a moment.
        wait_until(lambda: not host.job(name) or host("delete", name, expect=None).code == 0, 30,  # noqa: B023
                   lambda: f"{name} stays on {host.name}")  # noqa: B023


def expect_only(here, there, name="job"):
    """Requires that the job runs and makes progress on `here`, and does not run on `there`."""
    demand(here.runs(name), lambda: f"it does not run on {here.name}:\n{here('ps', '-a').out}")
    demand(not there.runs(name), f"it runs on {there.name} too")
    await_rounds(here, name)
    check_rounds(here, there, name=name)


def expect_no_rest(*hosts):
    for host in hosts:
        wait_until(lambda: not host.images(), 30, lambda: f"{host.name} keeps {host.images()}")  # noqa: B023


def settle(*hosts):
    for host in hosts:
        if host.sshd.last:
            host.sshd.last.join(60)
        wait_until(lambda: not journal(host), 60, lambda: f"{host.name}: {journal(host)}")  # noqa: B023


def journal(host):
    """Recovers; returns what is still in progress."""
    return [r for r in host("recover", "--json", expect=None).json()["recovered"] if r.get("under_way")]


def clear(*hosts):
    for host in hosts:
        end(host)
        host("image", "gc", expect=None)
        if host.images():
            host("image", "delete", *host.images())


def await_journal(host, text):
    wait_until(lambda: text in "".join(p.read_text() for p in (host.state / "run" / "journal").glob("*.journal")), 60,
               f"{host.name} does not come to {text}")


def with_two(run):
    """Returns a test for one_world.main() that calls run(world, a, b) with two hosts."""
    def test(world):
        shutil.copy(HERE / "ssh_client.py", world.folder / "ssh")
        hosts = Host(world, "a"), Host(world, "b")
        run(world, *hosts)
        for host in hosts:
            host.end()
    return test
