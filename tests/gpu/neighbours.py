"""The steps of neighbours.sh; see there."""

import argparse
import functools
import os
import pathlib
import sys

from harness import Report, StepFailed, run, tail
from ride import Job, Machine, sequence_is_whole

HERE = pathlib.Path(__file__).resolve().parent
SOFT = os.environ.get("GPU") == "soft"
TIMES = 10
AHEAD = ["--ahead", "50", "--megabytes", "4", "--interval", "0"]
# NCCL's only transport that the driver's own checkpoint carries.
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

# Who is suspended, who is beside it, their environment, whether under the agent, options of the suspend.
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


def kernel_lines():
    return run(["dmesg", "--time-format", "iso"], 10).out.splitlines()


def pair(machine, name):
    left, right, env, agent, words = STEPS[name]
    before = len(kernel_lines())
    jobs, done = [], 0
    try:
        for which, command in (("left", left), ("right", right)):
            jobs.append(Job(machine, f"{name}-{which}", command(machine), env, agent))
        for job in jobs:
            job.wait_ready(120)
        for done in range(TIMES):
            jobs[0].verb("suspend", jobs[0].name, *words)
            jobs[1].wait_rounds(5, 30)
            jobs[0].verb("resume", jobs[0].name)
            for job in jobs:
                job.wait_rounds(5, 30)
        for job in jobs:
            job.finish()
            sequence_is_whole(job.output)
        return f"{TIMES} times; {jobs[0].output.count()} and {jobs[1].output.count()} rounds, all right"
    except StepFailed as failed:
        others = [f"{job.name}: {job.output.failure() or 'goes on'}" for job in jobs]
        raise StepFailed(f"after {done} times: {tail(str(failed), 600)}\n" + "\n".join(others)) from failed
    finally:
        lines = kernel_lines()[before:]
        machine.log(f"{name}-kernel").write_text("\n".join(lines))
        machine.report.number("Xid lines of the kernel:", sum("Xid" in line for line in lines), "")
        for job in jobs:
            job.kill()
        machine.stasis(None, "recover", timeout_s=30, expect=None)


def main():
    parser = argparse.ArgumentParser(prog="neighbours.sh")
    parser.add_argument("dist", metavar="DIST_DIR")
    parser.add_argument("out", metavar="OUT_DIR")
    parser.add_argument("names", metavar="STEP", nargs="*")
    options = parser.parse_args()
    report = Report(options.out, float(os.environ.get("BUDGET_S", "400")), "neighbours")
    machine = Machine(options.dist, report, SOFT)
    # Beside another one NCCL is refused by itself.
    machine.env["STASIS_TRY_NCCL"] = "1"
    known = [name for name in STEPS if not (SOFT and name.startswith("nccl"))]
    try:
        for name in options.names or known:
            report.step(name, 120, functools.partial(pair, machine, name))
    finally:
        code = report.finish()
        machine.clean()
    return code


if __name__ == "__main__":
    sys.exit(main())
