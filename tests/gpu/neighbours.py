"""The steps of neighbours.sh. On driver 580 crowd, crowd-driver and spin-long-driver fail."""

import argparse
import functools
import os
import pathlib
import sys
import time

from harness import Report, StepFailed, first_line, is_alive, run, tail
from nccl import SETTINGS
from ride import Job, Machine, descendants, sequence_is_whole

HERE = pathlib.Path(__file__).resolve().parent
SOFT = os.environ.get("GPU") == "soft"
TIMES = int(os.environ.get("TIMES", "10"))
AHEAD = ["--ahead", "50", "--megabytes", "4", "--interval", "0"]
# NCCL's only transport that the driver's own checkpoint supports.
PLAIN = {"NCCL_P2P_DISABLE": "1", "NCCL_CUMEM_ENABLE": "0"}


def python(name, *words):
    return lambda _machine: [sys.executable, HERE / name, *words]


def workload(name, *words):
    return lambda machine: [machine.workload(name), *words]


if SOFT:
    LONG = workload("vector", "--memory", "64M", "--interval", "20")
    SPLIT = workload("peers", "--devices", "2", "--memory", "64M", "--interval", "20")
else:
    LONG = python("torch_long.py")
    SPLIT = python("torch_split.py", "--gpus", "2")

# The suspended program, its neighbour, their environment, whether they run under the agent, options
# of the suspend.
STEPS = {
    "long-driver": (LONG, LONG, {}, False, []),
    "long": (LONG, LONG, {}, True, []),
    "long-kept": (LONG, LONG, {}, True, ["--keep-context"]),
    "split": (SPLIT, SPLIT, {}, True, []),
    "nccl-driver": (python("nccl_ranks.py", *AHEAD), python("nccl_ranks.py"), PLAIN, False, []),
    "nccl-plain": (python("nccl_ranks.py", *AHEAD), python("nccl_ranks.py"), PLAIN, True, []),
    "nccl-kept": (python("nccl_ranks.py", *AHEAD), python("nccl_ranks.py"), {}, True, ["--keep-context"]),
    "nccl": (python("nccl_ranks.py", *AHEAD), python("nccl_ranks.py"), {}, True, []),
}


# Whether a restored program can be preempted in the middle of a kernel: length of the kernels,
# whether it runs under the agent, options of the suspend. The driver kills a program that is not
# preempted within some seconds (Xid 109).
SPINS = {
    "spin-driver": (3000, False, []),
    "spin": (3000, True, []),
    "spin-kept": (3000, True, ["--keep-context"]),
    "spin-long-driver": (12000, False, []),
    "spin-long-kept": (12000, True, ["--keep-context"]),
}
WATCHED_S = 6

# Many programs on both GPUs: the settings, whether under the agent, options of the suspend (None:
# no suspend).
CARRIED = [name for name, (_, _, refusal) in SETTINGS.items() if not refusal]
CROWDS = {
    "crowd-untouched": (CARRIED, True, None),
    "crowd-kept": (CARRIED, True, ["--keep-context"]),
    "crowd-driver": (["plain-driver"] * len(CARRIED), False, []),
    "crowd": (CARRIED, True, []),
}


def kernel_lines():
    return run(["dmesg", "--time-format", "iso"], 10).out.splitlines()


def pair(machine, name):
    left, right, env, agent, words = STEPS[name]
    return disturbed(machine, name, [(f"{name}-{which}", command(machine), env, agent)
                                     for which, command in (("left", left), ("right", right))], 1, words)


def crowd(machine, name):
    settings, agent, words = CROWDS[name]
    programs = []
    for number, setting in enumerate(settings):
        env, its_words, _ = SETTINGS[setting]
        programs.append((f"{name}-{number}-{setting}", python("nccl_ranks.py", *its_words)(machine), env, agent))
    return disturbed(machine, name, programs, len(programs), words)


def spin(machine, name):
    """Measures the progress of a program with short kernels beside long ones, before and after a
    suspend of the latter."""
    milliseconds, agent, words = SPINS[name]
    before = len(kernel_lines())
    left = Job(machine, f"{name}-left", python("cupy_spin.py", "--ms", milliseconds)(machine), agent=agent)
    right = Job(machine, f"{name}-right", python("cupy_spin.py", "--ms", 1)(machine), agent=agent)
    watched_s = WATCHED_S + 2 * milliseconds / 1000
    try:
        for job in (left, right):
            job.wait_ready(60)
        for when in ("before", "after it came back"):
            left.wait_rounds(1, 60)
            began = right.output.count(), left.output.count()
            time.sleep(watched_s)
            done = right.output.count() - began[0], left.output.count() - began[1]
            machine.report.number(f"{when}: rounds of the other in {watched_s:g} s:", done[0], "")
            machine.report.number(f"{when}: its own:", done[1], "")
            if when == "before":
                left.verb("suspend", left.name, *words)
                right.wait_rounds(50, 30)
                left.verb("resume", left.name)
        for job in (left, right):
            job.finish()
            sequence_is_whole(job.output)
        return "all counted"
    except StepFailed as failed:
        xids = [line for line in kernel_lines()[before:] if "Xid" in line]
        words = [first_line(tail(str(failed), 600)), f"left {left.pid}, right {right.pid}", *xids]
        raise StepFailed("\n".join(words)) from failed
    finally:
        for job in (left, right):
            job.kill()
        machine.stasis(None, "recover", timeout_s=30, expect=None)


def disturbed(machine, name, programs, count, words):
    """Suspends and resumes the first `count` programs in turn; all continue with right results."""
    before = len(kernel_lines())
    if "--keep-context" not in (words or []):
        # Allows a suspend beside another program with NCCL, which is normally refused. This test
        # shows why.
        machine.env["STASIS_TRY_NCCL"] = "1"
    jobs, pids, done = [], [], 0
    try:
        for program in programs:
            jobs.append(Job(machine, *program))
        for job in jobs:
            job.wait_ready(120)
        pids = [f"{job.name}: processes {[job.pid, *descendants(job.pid)]}" for job in jobs]
        for done in range(TIMES):
            for one in jobs[:count]:
                if words is not None:
                    one.verb("suspend", one.name, *words)
                for job in jobs:
                    if job is not one or words is None:
                        job.wait_rounds(5, 30)
                if words is not None:
                    one.verb("resume", one.name)
                for job in jobs:
                    job.wait_rounds(5, 30)
        for job in jobs:
            job.finish()
            sequence_is_whole(job.output)
        rounds = ", ".join(str(job.output.count()) for job in jobs)
        return f"{TIMES} times; rounds: {rounds}; all right"
    except StepFailed as failed:
        how = [f"{job.name}: {job.output.failure() or ('goes on' if is_alive(job.pid) else 'has ended')}"
               for job in jobs]
        xids = [line for line in kernel_lines()[before:] if "Xid" in line]
        first = f"after {done} times: {first_line(tail(str(failed), 600))}"
        raise StepFailed("\n".join([first, *how, *pids, *xids])) from failed
    finally:
        lines = kernel_lines()[before:]
        machine.log(f"{name}-kernel").write_text("\n".join(lines))
        machine.report.number("Xid lines of the kernel:", sum("Xid" in line for line in lines), "")
        for job in jobs:
            job.kill()
        machine.stasis(None, "recover", timeout_s=30, expect=None)
        machine.env.pop("STASIS_TRY_NCCL", None)


def main():
    parser = argparse.ArgumentParser(prog="neighbours.sh")
    parser.add_argument("dist", metavar="DIST_DIR")
    parser.add_argument("out", metavar="OUT_DIR")
    parser.add_argument("names", metavar="STEP", nargs="*")
    options = parser.parse_args()
    report = Report(options.out, float(os.environ.get("BUDGET_S", "400")), "neighbours")
    machine = Machine(options.dist, report, SOFT)
    steps = {name: functools.partial(pair, machine, name) for name in STEPS}
    steps |= {name: functools.partial(spin, machine, name) for name in SPINS}
    steps |= {name: functools.partial(crowd, machine, name) for name in CROWDS}
    known = [name for name in steps if not SOFT or not name.startswith(("nccl", "crowd", "spin"))]
    try:
        for name in options.names or known:
            report.step(name, 200, steps[name])
    finally:
        code = report.finish()
        machine.clean()
    return code


if __name__ == "__main__":
    sys.exit(main())
