#!/usr/bin/env python3
"""Two machines with the same state folder, as nodes of a cluster with a common home. The second machine, and those after
it, are UTS and mount namespaces with another host name and boot id; all of them see the same processes."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))

import one_world  # noqa: E402
import processes  # noqa: E402
from world import demand  # noqa: E402

ENTER = 'hostname "$1" && mount --bind "$2" /proc/sys/kernel/random/boot_id && echo READY && read -r end'


class Machine:
    """One boot of a machine, until `with` ends. `boot` is its boot id."""

    def __init__(self, world, name, boot=None):
        self.world, self.name = world, name
        self.boot = boot or f"{uuid.uuid4()}\n"
        path = world.folder / f"boot-{uuid.uuid4()}"
        path.write_text(self.boot)
        self.init = subprocess.Popen(["unshare", "--uts", "--mount", "--", "sh", "-c", ENTER, "sh", name, path],
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        world.own(self.init.pid)
        demand(self.init.stdout.readline() == "READY\n", f"{name} did not start")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.init.stdin.close()
        self.init.wait()
        self.world.disown(self.init.pid)

    def __call__(self, *words, expect=0, env=None):
        done = self.world.begin("-t", str(self.init.pid), "-u", "-m", "--", self.world.bin / "stasis", *words,
                                program="/usr/bin/nsenter", env=env).wait()
        self.world.reap()
        demand(done.code == expect, lambda: f"on {self.name}, expected exit code {expect}:\n{done}")
        return done


def told(stasis, name):
    """Returns what `ps` says about the job."""
    job = next(job for job in stasis("ps", "-a", "--json").json()["jobs"] if job["id"] == name)
    inspected = stasis("inspect", name, "--json").json()
    demand((inspected["state"], inspected["node"]) == (job["state"], job["node"]), f"{inspected} {job}")
    return job["state"], job["node"]


def expect_told(stasis, name, state, node=None):
    demand(told(stasis, name) == (state, node), lambda: f"{told(stasis, name)}, not {state} {node}")


def processes_of(world, name):
    record = json.loads((world.state / "data" / "jobs" / name / "process.json").read_text())
    return [record[which]["pid"] for which in ("shim", "root")]


def fail_machine(world, *jobs):
    """Ends programs without a record of their end."""
    pids = [pid for name in jobs for pid in processes_of(world, name)]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    processes.wait_until(lambda: world.reap() or not any(map(processes.is_alive, pids)), 30, f"{pids} do not end")


def use_own(world):
    """A job of the test's machine is not affected."""
    world.stasis("run", "--job", "own", "--", world.workloads / "counter", "--memory", "8M")
    world.stasis("suspend", "own")
    world.stasis("resume", "own")
    world.stasis("kill", "own", "-s", "KILL")
    world.stasis("wait", "own", expect=137)
    world.stasis("delete", "own")


def commands_are_refused(world, machine):
    use_own(world)  # mounts the folder for GPU data, which the mount namespaces then have in common
    node = machine("node7")
    node("run", "--job", "job", "--", world.workloads / "counter", "--memory", "8M")
    node("dump", "job", "--leave-running", "--name", "image")
    expect_told(node, "job", "running")
    expect_told(world.stasis, "job", "elsewhere", "node7")
    demand(" on node7 " in world.stasis("ps").out, f"{world.last}")
    hint = "stasis kill --lost job"
    for words in (["suspend", "job"], ["resume", "job"], ["dump", "job"], ["kill", "job"], ["kill", "job", "--only"],
                  ["wait", "job"], ["delete", "job"], ["attach", "job"], ["logs", "-f", "job"], ["restore", "job"],
                  ["restore", "image"], ["run", "--job", "job", "--or-restore", "--", "true"]):
        refused = world.stasis(*words, expect=7)
        demand("job runs on node7" in refused.err and hint in refused.err, f"{refused}")
    world.stasis("run", "--job", "job", "--", "true", expect=None)
    demand(world.last.code != 0, f"{world.last}")
    # Its shim is alive, as its lock shows.
    refused = world.stasis("kill", "--lost", "job", expect=7)
    demand("job still runs on node7" in refused.err, f"{refused}")
    for words in (["--lost", "-s", "KILL"], ["--lost", "--only"]):
        world.stasis("kill", "job", *words, expect=2)
    expect_told(world.stasis, "job", "elsewhere", "node7")
    expect_told(node, "job", "running")
    node("suspend", "job")
    node("resume", "job")
    # Its own machine is not mistaken for another one if it gets another name.
    renamed = machine("renamed", node.boot)
    expect_told(renamed, "job", "running")
    refused = renamed("kill", "--lost", "job", expect=7)
    demand("not on another machine" in refused.err, f"{refused}")
    # An end that was recorded is known everywhere.
    node("run", "--job", "short", "--", "sh", "-c", "exit 3")
    node("wait", "short", expect=3)
    expect_told(world.stasis, "short", "exited")
    world.stasis("delete", "short")


def failed_machine(world, machine):
    """After commands_are_refused()."""
    fail_machine(world, "job")
    expect_told(world.stasis, "job", "elsewhere", "node7")
    world.stasis("restore", "job", expect=7)
    done = world.stasis("kill", "--lost", "job", "--json").json()
    demand(done == {"id": "job", "signal": 0, "processes": 0}, f"{done}")
    expect_told(world.stasis, "job", "lost")
    world.stasis("kill", "--lost", "job", expect=7)
    world.stasis("run", "--job", "job", "--or-restore", "--", "/no/such/program")
    expect_told(world.stasis, "job", "running")
    back = machine("node7")
    here = os.uname().nodename
    expect_told(back, "job", "elsewhere", here)
    world.stasis("kill", "job", "-s", "KILL")
    world.stasis("wait", "job", expect=137)
    expect_told(back, "job", "exited")
    world.stasis("delete", "job")
    world.stasis("image", "delete", "image")


def restarted_machine(world, machine):
    before = machine("node7")
    for name in ("one", "two", "old"):
        before("run", "--job", name, "--", "sleep", "1000")
    fail_machine(world, "one", "two", "old")
    path = world.state / "data" / "jobs" / "old" / "process.json"
    record = json.loads(path.read_text())
    del record["host"]
    path.write_text(json.dumps(record))
    expect_told(world.stasis, "one", "elsewhere", "node7")
    expect_told(world.stasis, "old", "lost")  # written by a version that recorded no host
    after = machine("node7")
    expect_told(after, "one", "lost")
    after("delete", "one")
    # If it was renamed, too, its jobs are freed by hand.
    renamed = machine("node8")
    renamed("delete", "two", expect=7)
    renamed("kill", "--lost", "two")
    renamed("delete", "two")
    after("delete", "old")


def interrupted_operation(world, machine):
    node = machine("node7")
    node("run", "--job", "job", "--", world.workloads / "counter", "--memory", "8M")
    node("dump", "job", "--name", "half", expect=-9, env={"STASIS_FAULT": "gpu-checkpoint:after:die"})
    entries = sorted(world.journal.iterdir())
    demand(len(entries) == 1, f"{entries}")
    left = world.stasis("recover", "--json").json()
    demand("belongs to node7" in json.dumps(left), f"{left}")
    demand(sorted(world.journal.iterdir()) == entries, "recover has removed it")
    # It does not stop other operations.
    use_own(world)
    demand(sorted(world.journal.iterdir()) == entries, "another operation has removed it")
    fail_machine(world, "job")
    world.stasis("kill", "--lost", "job")
    world.stasis("recover")
    demand(not list(world.journal.iterdir()), f"{world.last}")
    world.stasis("delete", "job")


def run(world):
    for part in (commands_are_refused, failed_machine, restarted_machine, interrupted_operation):
        with contextlib.ExitStack() as machines:
            part(world, lambda name, boot=None: machines.enter_context(Machine(world, name, boot)))  # noqa: B023
        world.expect_clean()


if __name__ == "__main__":
    sys.exit(one_world.main(run))
