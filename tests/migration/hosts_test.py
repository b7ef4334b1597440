#!/usr/bin/env python3
"""A program moves between two hosts, each with its own network, mount, pid and UTS namespaces and its own software GPU.

A stand-in for ssh enters the other host's namespaces. Whatever fails or is killed, the program runs on exactly one of
the hosts afterwards, with the right memory, or it runs nowhere and its complete image is named.
"""

import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "stage"))
import one_world  # noqa: E402
import processes  # noqa: E402
import schemas  # noqa: E402
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
    def __init__(self, world, name, memory="1G"):
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


def there_and_back(world, a, b):
    start(a)
    pauses = []
    for turn in range(10 if world.every else 3):
        here, there = (a, b) if turn % 2 == 0 else (b, a)
        result = here("migrate", "job", there.name, "--json").json()
        demand(result["migration"]["host"] == there.name, f"{result['migration']}")
        if schemas.is_able():
            schemas.compare("migrate", result)
        rounds = result["migration"]["rounds"]
        demand(len(rounds) >= 2, f"the program was not copied while it ran: {rounds}")
        demand(rounds[-1]["known_bytes"] > rounds[0]["sent_bytes"] // 2, f"the last round sent everything again: {rounds}")
        pauses.append(result["pause_s"])
        demand(0 < result["pause_s"] < result["total_s"] + 1, f"the pause is {result['pause_s']}")
        expect_only(there, here)
        gone = here.job("job")
        demand(gone["state"] == "dumped", f"the job is {gone['state']}")
        demand(f"ssh://{there.name}/job" in here("inspect", "job").out, here("inspect", "job").out)
        demand(f"was moved to ssh://{there.name}/job" in here("restore", "job", expect=7).err, "a restore does not say where it runs")
        expect_no_rest(a, b)
        here("delete", "job")
    end(a, b)


def without_rounds(a, b):
    """Also to another name."""
    start(a)
    result = a("migrate", "job", "b", "--rounds", "0", "--job", "moved", "--json").json()
    demand(len(result["migration"]["rounds"]) == 1, f"{result['migration']}")
    await_rounds(b, "moved")
    demand(not a.runs("job"), "it runs on a too")
    a("delete", "job")
    end(b, name="moved")


def via_repository(world, a, b):
    """Images go through an encrypted repository, which holds none of them afterwards."""
    fleet = world.folder / "fleet"
    fleet.mkdir()
    a("key", "create")
    (b.state / "data").mkdir(exist_ok=True)
    shutil.copy(a.state / "data" / "stasis-key", b.state / "data" / "stasis-key")
    for host in (a, b):
        host("repo", "add", "fleet", fleet)
    start(a)
    result = a("migrate", "job", "b", "--via", "fleet", "--json").json()
    demand(result["migration"]["via"] == "fleet", f"{result['migration']}")
    demand(result["migration"]["rounds"][-1]["known_bytes"] > 32 << 20, f"{result['migration']}")
    expect_only(b, a)
    demand(not a("image", "ls", "-R", "fleet", "--json").json()["images"], "images are left in the repository")
    expect_no_rest(a, b)
    a("delete", "job")
    done = b("migrate", "job", "a", "--via", str(fleet), expect=2)
    demand("needs the name of a repository" in done.err, f"{done}")
    # Another repository under the same name.
    other = world.folder / "other"
    other.mkdir()
    a("repo", "remove", "fleet")
    a("repo", "add", "fleet", other)
    done = b("migrate", "job", "a", "--via", "fleet", expect=None)
    demand(done.code == 7 and "is not the same on this host" in done.err, f"{done}")
    expect_only(b, a)
    end(a, b)


def refusals(world, a, b):
    start(a)
    for words, code, text in [
            (("migrate", "job", "nowhere"), 1, "Could not resolve"),
            (("migrate", "job", "-oProxyCommand=x"), 2, ""),
            (("migrate", "job", "a b"), 2, "is not a host"),
            (("migrate", "other", "b"), 3, "other"),
            (("migrate", "job", "b", "--via", "none"), 3, "none")]:
        done = a(*words, expect=code)
        demand(text in done.err, f"the message lacks {text}: {done}")
        expect_only(a, b)
    done = a("migrate", "job", "b", env={"STASIS_MIGRATE_REMOTE_COMMAND": "no-such-stasis"}, expect=None)
    demand(done.code == 1 and "Install Stasis on b" in done.err, f"{done}")
    done = a("migrate", "job", "b", env={"STASIS_MIGRATE_REMOTE_COMMAND": "echo hello"}, expect=None)
    demand(done.code != 0 and "hello" in done.err, f"{done}")
    expect_only(a, b)
    # The name is taken there.
    start(b)
    done = a("migrate", "job", "b", expect=7)
    demand("b cannot restore the program" in done.err and "job" in done.err, f"{done}")
    demand(a.runs("job") and b.runs("job"), "one of them has ended")
    end(b)
    # Not enough memory on the other GPU, and another host without the program's file.
    poor = Host(world, "poor", memory="32M")
    done = a("migrate", "job", "poor", expect=None)
    demand(done.code in (1, 5) and "poor cannot restore the program" in done.err, f"{done}")
    expect_only(a, poor)
    expect_no_rest(a, b, poor)
    poor.end()
    end(a)


# Where the source can be killed, and where the program runs then.
SOURCE_PHASES = [("describe", "before", "a"), ("commit", "after", "a"), ("hand-over", "before", "a"), ("hand-over", "after", "a"),
                 ("stop", "after", "a"), ("switch", "before", "a"), ("switch", "after", "b"), ("await-end", "before", "b")]


def source_killed(world, a, b):
    for phase, when, runs_on in SOURCE_PHASES:
        print(f"source killed: {phase} {when}", flush=True)
        start(a)
        a("migrate", "job", "b", "--rounds", "1", env={"STASIS_FAULT": f"{phase}:{when}:die"}, expect=-9)
        settle(a, b)
        expect_only(*((a, b) if runs_on == "a" else (b, a)))
        clear(a, b)


def await_journal(host, text):
    wait_until(lambda: text in "".join(p.read_text() for p in (host.state / "run" / "journal").glob("*.journal")), 60,
               f"{host.name} does not come to {text}")


def killed_while_switching(world, a, b):
    """The source is killed when it has let the program run there, and has no answer yet."""
    start(a)
    hold = world.folder / "hold"
    hold.touch()
    b.more_env = {"STASIS_FAULT": f"adopt:before:hold={hold}"}
    moving = a.begin("migrate", "job", "b", "--rounds", "0")
    await_journal(a, '"elsewhere":1')
    b.more_env = {}
    os.kill(processes.children(moving.pid)[0], signal.SIGKILL)
    hold.unlink()
    moving.wait()
    settle(a, b)
    expect_only(b, a)
    clear(a, b)


def criu_killed(world, a, b):
    """The program runs again while its image is sent, so the sent image is too old."""
    start(a)
    hold = world.folder / "hold"
    hold.touch()
    moving = a.begin("migrate", "job", "b", "--rounds", "0", env={"STASIS_FAULT": f"hand-over:before:hold={hold}"})
    await_journal(a, '"phase":"hand-over"')
    for pid in world.named("criu"):
        os.kill(pid, signal.SIGKILL)
    hold.unlink()
    done = moving.wait()
    settle(a, b)
    demand(done.code == 1 and "CRIU does not hold process" in done.err, f"{done}")
    expect_only(a, b)
    clear(a, b)


def without_gpu(a, b):
    """None of the program's code runs on the target before the switch."""
    a("run", "--job", "job", "--", a.world.workloads / "notcuda")
    a("migrate", "job", "b", "--rounds", "1")
    demand(b.runs("job") and not a.runs("job"), "it does not run on b alone")
    b.more_env = {}
    a.more_env = {"STASIS_FAULT": "adopt:before:fail"}
    b("migrate", "job", "a", "--rounds", "1", expect=1)
    a.more_env = {}
    demand(b.runs("job") and not a.runs("job"), "it does not run on b alone")
    clear(a, b)


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


TARGET_PHASES = [("load-room", "before"), ("cpu-restore", "before"), ("data-return", "before"), ("await-switch", "before"),
                 ("await-switch", "after"), ("adopt", "before")]


def target_fails(a, b):
    """The target fails or is killed. The program runs on here, except if it is unknown whether it runs there."""
    for phase, when in TARGET_PHASES:
        for how in ("fail", "die"):
            print(f"target: {phase} {when} {how}", flush=True)
            start(a)
            b.more_env = {"STASIS_FAULT": f"{phase}:{when}:{how}"}
            done = a("migrate", "job", "b", "--rounds", "1", expect=None)
            b.more_env = {}
            settle(a, b)
            unknown = how == "die" and (phase, when) in (("await-switch", "after"), ("adopt", "before"))
            demand(done.code == (6 if unknown else 1), f"{phase}:{when}:{how}: {done}")
            if unknown:
                demand("it is unknown whether the program runs on b" in done.err, f"{done}")
                demand(not a.runs("job") and not b.runs("job"), f"{phase}: it runs")
                image = re.search(r"its image (\S+) is complete", done.err).group(1)
                a("restore", image, "--job", "again")
                await_rounds(a, "again")
                end(a, name="again")
            else:
                expect_only(a, b)
            clear(a, b)


def connection_cut(world, a, b):
    """While the program is copied, and while it waits for the switch."""
    for phase in ("hand-over", "switch"):
        start(a)
        hold = world.folder / "hold"
        hold.touch()
        moving = a.begin("migrate", "job", "b", "--rounds", "0", env={"STASIS_FAULT": f"{phase}:before:hold={hold}"})
        await_journal(a, f'"phase":"{phase}"')
        b.sshd.cut()
        hold.unlink()
        done = moving.wait()
        settle(a, b)
        if phase == "hand-over":
            demand(done.code == 1, f"{done}")
            expect_only(a, b)
        else:
            demand(done.code == 6, f"{done}")
            demand(not a.runs("job") and not b.runs("job"), "it runs")
        clear(a, b)


def run(world):
    shutil.copy(HERE / "ssh_client.py", world.folder / "ssh")
    a, b = Host(world, "a"), Host(world, "b")
    there_and_back(world, a, b)
    without_rounds(a, b)
    via_repository(world, a, b)
    refusals(world, a, b)
    without_gpu(a, b)
    source_killed(world, a, b)
    killed_while_switching(world, a, b)
    criu_killed(world, a, b)
    target_fails(a, b)
    connection_cut(world, a, b)
    for host in (a, b):
        host.end()


if __name__ == "__main__":
    sys.exit(one_world.main(run))
