"""The steps of ipc.sh."""

import argparse
import functools
import os
import pathlib
import re
import sys

from fast_path import MIB, used_mib
from harness import Report, StepSkipped, demand, is_alive, tail, wait_until
from ride import Job, Machine, descendants, ride

HERE = pathlib.Path(__file__).resolve().parent
SOFT = os.environ.get("GPU") == "soft"


def golden(machine, name):
    text = (machine.dist / "workloads" / "golden" / f"{name}.txt").read_text()
    return re.findall(r"^ROUND (\d+) (\S+)$", text, re.M)


def workload(machine, name):
    """Takes a workload and its child through every command: with CUDA IPC, or with handles exported as files."""
    _, note = ride(machine, name, [machine.workload(name), "--interval", 50, "--memory", "256M"],
                   golden=golden(machine, name))
    return note


def torch_share(machine, name, *words):
    if SOFT:
        raise StepSkipped("PyTorch needs a real GPU")
    _, note = ride(machine, name, [sys.executable, HERE / "torch_share.py", *words], ready_s=120,
                   rounds_s=60)
    return note


def torch_again(machine):
    """Ten suspends in a row: each memory is copied once, with its owner."""
    if SOFT:
        raise StepSkipped("PyTorch needs a real GPU")
    job = Job(machine, "again", [sys.executable, HERE / "torch_share.py", "--megabytes", 1024])
    try:
        job.wait_ready(120)
        job.wait_rounds(3, 60)
        for _ in range(10):
            used = used_mib(machine)
            account = job.verb("suspend", "again").json()
            demand(account["path"] == "shared", f"the path was {account['path']}")
            # PyTorch keeps memory of its temporaries: that is copied too, but nothing twice.
            demand(account["shared_bytes"] <= used * MIB, f"{account['shared_bytes']} bytes travelled of {used} MiB")
            job.verb("resume", "again")
            job.wait_rounds(2, 60)
        job.finish()
    finally:
        job.kill()


def outsider(machine):
    """One of two programs that share memory cannot be suspended alone; both continue."""
    job = Job(machine, "outsider", [machine.workload("ipc"), "--interval", 50])
    try:
        job.wait_ready(60)
        (child,) = [pid for pid in descendants(job.pid) if is_alive(pid)]
        done = machine.stasis(None, "suspend", child, expect=None)
        demand(done.code == 5 and "CUDA IPC" in done.err,
               f"exit code {done.code}:\n{tail(done.err, 800)}")
        job.wait_rounds(3, 20)
        job.finish()
    finally:
        job.kill()


def without(machine, name):
    """The plain driver's results for comparison: the same program without the agent."""
    job = Job(machine, f"{name}-without", [machine.workload(name), "--interval", 50], agent=False)
    try:
        job.wait_ready(60)
        job.wait_rounds(3, 20)
        job.finish()
        known = golden(machine, name)
        printed = job.output.rounds()[:len(known)]
        demand(printed == known[:len(printed)], f"the rounds are not the known ones: {printed}")
    finally:
        job.kill()


def new_pidns(machine):
    """A program and its child that share memory are restored while other processes have their pids,
    twice."""
    name = "apart"
    job = Job(machine, name, [machine.workload("exported"), "--interval", 50])
    try:
        job.wait_ready(60)
        job.wait_rounds(3, 20)
        for image in ["first", "second"]:
            job.verb("dump", name, "-d", machine.images, "--name", image)
            wait_until(lambda: not is_alive(job.pid), 20, "the end of the dumped program")
            account = job.verb("restore", machine.images / image, "--log", job.output.path, "--new-pidns").json()
            job.pid = account["pid"]
            job.wait_rounds(3, 20)
            job.verb("suspend", name)
            job.verb("resume", name)
            job.wait_rounds(3, 20)
        job.finish()
    finally:
        job.kill()


STEPS = [
    ("ipc-without-agent", 60, functools.partial(without, name="ipc")),
    ("exported-without-agent", 60, functools.partial(without, name="exported")),
    ("ipc", 90, functools.partial(workload, name="ipc")),
    ("exported", 90, functools.partial(workload, name="exported")),
    ("new-pidns", 90, new_pidns),
    ("outsider", 60, outsider),
    ("torch-share", 240, functools.partial(torch_share, name="share")),
    ("torch-share-again", 300, torch_again),
]


def main():
    parser = argparse.ArgumentParser(prog="ipc.sh")
    parser.add_argument("dist", metavar="DIST_DIR")
    parser.add_argument("out", metavar="OUT_DIR")
    parser.add_argument("steps", metavar="STEP", nargs="*")
    options = parser.parse_args()
    report = Report(options.out, float(os.environ.get("BUDGET_S", "600")), "ipc")
    machine = Machine(options.dist, report, SOFT)
    for name, limit_s, function in STEPS:
        if not options.steps or any(name.startswith(prefix) for prefix in options.steps):
            report.step(name, limit_s, functools.partial(function, machine))
    code = report.finish()
    machine.clean()
    return code


if __name__ == "__main__":
    sys.exit(main())
