"""Hosts of the tests of migrations: each has its own network, mount, pid and UTS namespaces, software GPU and ssh server."""

import os
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "stage"))
import isolate  # noqa: E402
import one_world  # noqa: E402
import processes  # noqa: E402
from processes import wait_until  # noqa: E402
import ssh  # noqa: E402
from world import demand  # noqa: E402

# More process ids than a host uses until the next start of a job.
PIDS_OF_JOB = 1000
ROUND = re.compile(r"^ROUND (\d+) (\S+)$", re.M)


class Host:
    def __init__(self, world, name, memory="4G"):
        self.world, self.name = world, name
        self.folder = world.folder / name
        self.state, self.gpu = self.folder / "state", self.folder / "gpu"
        self.server = ssh.Server(self, world.network)
        mounts = self.server.mounts()
        for own, path in ((self.state, world.state), (self.gpu, world.gpu_folder)):
            own.mkdir(parents=True, mode=0o700)
            path.mkdir(exist_ok=True, mode=0o700)
            mounts += [own, path]
        self.env = {"HOME": str(self.server.home), "SOFTGPU_MEMORY": memory,
                    "STASIS_MIGRATE_SSH": world.network.command}
        self.process = subprocess.Popen(
            ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "--",
             sys.executable, "-B", HERE / "host_init.py", name, *mounts], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        world.own(self.process.pid)
        demand(self.process.stdout.readline() == "READY\n", f"host {name} did not start")
        self.init = processes.children(self.process.pid)[0]
        self.enter = ["/usr/bin/nsenter", "-t", str(self.init), "-n", "-u", "-m", "-p", "--"]
        self.server.start()
        self.set_receiver()

    def set_receiver(self, **env):
        """Sets the environment of `stasis receive` on this host, besides the usual one."""
        self.server.set_environment({**self.world.env, **self.env, **env})

    def receivers(self):
        """Returns the processes of `stasis receive` on this host. They are not below its first process."""
        def namespace(pid):
            try:
                return os.readlink(f"/proc/{pid}/ns/pid")
            except OSError:
                return None
        own = namespace(self.init)
        return [pid for pid in processes.all_pids() if namespace(pid) == own
                and b"receive" in (processes.told(pid, "cmdline") or b"").split(b"\0")]

    def begin(self, *words, env=None, program="stasis"):
        return self.world.begin(*self.enter[1:], self.world.bin / program, *words, program=self.enter[0],
                                env={**self.env, **(env or {})})

    def run(self, name, *words, options=()):
        """Starts a job, with process ids that no process on another host has."""
        self.world.used_pids += PIDS_OF_JOB
        line = f'echo {self.world.used_pids} > /proc/sys/kernel/ns_last_pid && exec "$0" run "$@"'
        done = self.begin("-c", line, self.world.bin / "stasis", *options, "--job", name, "--", *words, program="/bin/sh").wait()
        demand(done.code == 0, lambda: f"{done}")

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
        """Returns the names of images and of hidden folders, without notes about images in repositories, which stay for
        some minutes after a failure."""
        return [name for name in self.in_store() if ".sent-" not in name]

    def in_store(self):
        folder = self.state / "data" / "images"
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []

    def hidden(self):
        return [name for name in self.images() if name.startswith(".")]

    def end(self):
        self.process.stdin.close()
        self.process.wait()
        self.world.disown(self.process.pid)
        self.server.end()


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


def start(host, name="job", memory="8M", options=()):
    host.run(name, host.world.workloads / "vector", "--memory", memory, "--interval", "50", options=options)
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
        wait_until(lambda: not host.in_store(), 30, lambda: f"{host.name} keeps {host.in_store()}")  # noqa: B023


def settle(*hosts):
    for host in hosts:
        wait_until(lambda: not host.receivers(), 60, lambda: f"{host.name} still receives")  # noqa: B023
        wait_until(lambda: not journal(host), 60, lambda: f"{host.name}: {journal(host)}")  # noqa: B023


def journal(host):
    """Recovers; returns what is still in progress."""
    return [r for r in host("recover", "--json", expect=None).json()["recovered"] if r.get("under_way")]


def clear(*hosts):
    for host in hosts:
        end(host)
        # A process that is ending may still lock its hidden folder.
        wait_until(lambda: host("image", "gc", expect=None) and not host.hidden(), 30,  # noqa: B023
                   lambda: f"{host.name} keeps {host.hidden()}")  # noqa: B023
        if host.images():
            host("image", "delete", *host.images())


def images_of(host, repository):
    """Returns the names of the images in a repository."""
    return sorted(image["name"] for image in host("image", "ls", "-R", repository, "--json").json()["images"])


def await_journal(host, text):
    wait_until(lambda: text in "".join(p.read_text() for p in (host.state / "run" / "journal").glob("*.journal")), 60,
               f"{host.name} does not come to {text}")


def run_test(run):
    """Runs a test, run(world, a, b), with two hosts; returns its exit code."""
    if not ssh.SERVER.exists():
        print(f"SKIPPED: there is no ssh server {ssh.SERVER}")
        return isolate.SKIPPED

    def with_hosts(world):
        world.used_pids = 0
        world.network = ssh.Network(world.folder)
        hosts = Host(world, "a"), Host(world, "b")
        run(world, *hosts)
        for host in hosts:
            host.end()
    return one_world.main(with_hosts)
