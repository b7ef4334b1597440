"""The steps of first_light.sh."""

import functools
import os
import pathlib
import re
import shutil
import sys

from harness import Report, StepSkipped, demand, is_alive, run, tail, wait_until
from ride import Job, Machine, ride

HERE = pathlib.Path(__file__).resolve().parent
SOFT = os.environ.get("GPU") == "soft"

# Programs that every command must support.
CARRIED = ["vector", "streams", "hostmem", "globals", "threads", "pool", "vmm", "tree", "zombie"]
# Programs that only have to print the right lines.
NUISANCES = ["managed", "forker", "notcuda"]

# Program, command, and the required text of the refusal: PID is the forked child's.
REFUSALS = [
    ("managed", "suspend", "managed|NOT_SUPPORTED|not supported"),
    ("managed", "dump", "managed|NOT_SUPPORTED|not supported"),
    ("iouring", "dump", "io_uring"),
]
if os.environ.get("AGENT") == "no":  # under it, the child does not inherit the GPU's files
    REFUSALS.append(("forker", "dump", "PID"))


def golden(machine, name):
    text = (HERE.parent.parent / "workloads" / "golden" / f"{name}.txt").read_text()
    return text, re.findall(r"^ROUND (\d+) (\S+)$", text, re.M)


def tarball(machine):
    version = machine.stasis(None, "version").json()
    machine.report.facts["stasis"] = version
    if not SOFT:
        smi = run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total,memory.used,uuid",
                   "--format=csv,noheader"], 30)
        machine.report.facts["GPU"] = smi.out.strip()
    machine.report.facts["kernel"] = os.uname().release
    check = machine.stasis(None, "check", expect=None)
    demand(check.code == 0, f"stasis check finds this machine unable:\n{tail(check.out)}")


def conformance(machine, name):
    done = run([machine.workload(name), "--rounds", 20, "--interval", 0], 60,
               machine.log(machine.report.step_name), machine.env)
    demand(done.code == 0, f"exit code {done.code}: {tail(done.out + done.err, 400)}")
    expected, _ = golden(machine, name)
    differing = [(e, f) for e, f in zip(expected.splitlines(), done.out.splitlines()) if e != f]
    demand(done.out == expected, f"prints other lines than softgpu: {differing[:2]}")
    broken = run([machine.workload(name), "--rounds", 3, "--interval", 0, "--sabotage"], 60,
                 machine.log(machine.report.step_name), machine.env)
    demand(broken.code == 1 and "FAILED" in broken.out,
           "one damaged byte went unnoticed: " + tail(broken.out, 200))


def start_counter(machine, name, memory):
    job = Job(machine, name, [machine.workload("counter"), "--memory", memory])
    job.wait_ready(60)
    return job, re.search(r"^PORT (\d+)$", job.output.text(), re.M).group(1)


def counter(machine):
    """101, dump, kill, restore, 102; then again with --leave-running and SIGKILL."""
    job, port = start_counter(machine, "counter", "64M" if SOFT else "1G")
    try:
        demand(machine.udp(port, "hello") == "101", "the first answer is not 101")
        before = machine.udp(port, "verify")
        demand(before.startswith("OK "), f"verify answers {before}")
        job.verb("dump", "counter", "-d", machine.images, "--name", "counter")
        wait_until(lambda: not is_alive(job.pid), 10, "the end of the dumped counter")
        job.restore(machine.images / "counter")
        demand(machine.udp(port, "hello") == "102", "the answer after the restore is not 102")
        demand(machine.udp(port, "verify") == before, "its memory is not what it was")

        job.verb("dump", "counter", "-d", machine.images, "--name", "second", "--leave-running")
        demand(machine.udp(port, "hello") == "103", "the counter did not go on after the dump")
        job.kill()
        wait_until(lambda: not is_alive(job.pid), 10, "the end of the killed counter")
        job.restore(machine.images / "second")
        demand(machine.udp(port, "hello") == "103", "the second image is not of 102")
        demand(machine.udp(port, "verify") == before, "its memory is not what it was")
        demand(machine.udp(port, "quit") == "BYE", "it does not end")
        wait_until(lambda: job.output.has("EXIT-SUCCESS"), 20, "the end of the counter")
    finally:
        job.kill()


def carried(machine, name):
    _, rounds = golden(machine, name)
    _, note = ride(machine, name, [machine.workload(name), "--interval", 50], golden=rounds)
    return note


def refused(machine, name, verb, pattern):
    job = Job(machine, f"{name}-{verb}", [machine.workload(name), "--interval", 50])
    try:
        wait_until(lambda: job.output.has("READY") or job.output.failure(), 20, "its start")
        if "io_uring_setup" in (job.output.failure() or ""):
            raise StepSkipped(f"this machine forbids io_uring: {job.output.failure()}")
        job.wait_rounds(2, 10)
        words = ["-d", machine.images, "--name", job.name] if verb == "dump" else []
        done = job.verb(verb, job.name, *words, expect=None)
        job.demand_refusal(done, pattern)
        demand(not (machine.images / job.name).exists(), "a refused dump has left an image")
        job.wait_rounds(2, 20)
        job.finish()
        return done.err.strip().splitlines()[0]
    finally:
        job.kill()


def beside_the_driver(machine):
    """Times the driver's four steps and the two commands on the same process."""
    job, port = start_counter(machine, "times", "64M" if SOFT else "8G")
    try:
        before = machine.udp(port, "verify", 60000)
        for word in ["lock", "checkpoint", "restore", "unlock"]:
            job.verb("gpu", word, job.pid)
        demand(machine.udp(port, "verify", 60000) == before, "the driver's steps changed its memory")
        for _ in range(2):
            used = machine.gpu_memory()
            job.verb("suspend", "times")
            machine.report.facts["GPU memory before and after the suspend"] = (
                f"{used}, {machine.gpu_memory()}")
            job.verb("resume", "times")
        demand(machine.udp(port, "verify", 60000) == before, "our verbs changed its memory")
        job.verb("dump", "times", "-d", machine.images, "--name", "times")
        wait_until(lambda: not is_alive(job.pid), 10, "the end of the dumped counter")
        job.restore(machine.images / "times")
        demand(machine.udp(port, "verify", 60000) == before, "the restore changed its memory")
        machine.udp(port, "quit")
    finally:
        job.kill()
        shutil.rmtree(machine.images / "times", ignore_errors=True)


class Torch:
    """Disturbed runs first, then one undisturbed run of the same length for comparison."""

    def __init__(self, machine):
        self.machine = machine
        self.printed = {}

    def ride(self, name, program, *words, refusal=None):
        if SOFT:
            raise StepSkipped("PyTorch needs a real GPU")
        command = [sys.executable, HERE / program, *words]
        rounds, note = ride(self.machine, name, command, ready_s=90, rounds_s=60, step_rounds=5,
                            refusal=refusal)
        self.printed.setdefault(program, {})[name] = rounds
        return note

    def compare(self, program):
        if SOFT:
            raise StepSkipped("PyTorch needs a real GPU")
        runs = self.printed.get(program)
        demand(runs, "there is no disturbed run to compare")
        longest = max(len(rounds) for rounds in runs.values())
        done = run([sys.executable, HERE / program, "--rounds", longest], 150,
                   self.machine.log(self.machine.report.step_name))
        demand(done.code == 0, f"the undisturbed run: exit code {done.code}: {tail(done.err)}")
        alone = re.findall(r"^ROUND (\d+) (\S+)$", done.out, re.M)
        demand(len({value for _, value in alone}) > 1, "all rounds are equal, so this tests nothing")
        for name, rounds in runs.items():
            wrong = [(a, b) for a, b in zip(alone, rounds) if a != b]
            demand(not wrong, f"{name}: {len(wrong)} of {len(rounds)} rounds differ, first {wrong[:1]}")
        return ", ".join(f"{name}: {len(rounds)} rounds the same" for name, rounds in runs.items())


def steps(machine):
    """Yields (name, time limit in seconds, function). The longest steps come last, so that little
    is lost if time runs out."""
    torch = Torch(machine)
    yield "tarball", 60, functools.partial(tarball, machine)
    yield "counter", 120, functools.partial(counter, machine)
    for name in ["counter", *CARRIED, *NUISANCES]:
        yield f"conformance-{name}", 60, functools.partial(conformance, machine, name)
    yield "torch-inference", 150, functools.partial(
        torch.ride, "inference", "torch_inference.py")
    yield "torch-training-0", 150, functools.partial(
        torch.ride, "training-0", "torch_training.py", "--workers", "0")
    # Workers forked after CUDA's start hold its files; a refusal must name one of them.
    yield "torch-training-2", 150, functools.partial(
        torch.ride, "training-2", "torch_training.py", "--workers", "2", refusal="PID")
    yield "torch-training-2-first", 150, functools.partial(
        torch.ride, "training-2-first", "torch_training.py", "--workers", "2", "--workers-first",
        refusal=".")
    yield "torch-inference-same", 150, functools.partial(torch.compare, "torch_inference.py")
    yield "torch-training-same", 150, functools.partial(torch.compare, "torch_training.py")
    yield "beside-the-driver", 120, functools.partial(beside_the_driver, machine)
    for name in CARRIED:
        yield f"carried-{name}", 60, functools.partial(carried, machine, name)
    for name, verb, pattern in REFUSALS:
        yield f"refused-{name}-{verb}", 60, functools.partial(refused, machine, name, verb, pattern)


def main():
    if len(sys.argv) < 3:
        print("usage: first_light.sh DIST_DIR OUT_DIR [STEP…]", file=sys.stderr)
        return 2
    wanted = sys.argv[3:]
    report = Report(sys.argv[2], float(os.environ.get("BUDGET_S", "520")), "first_light")
    machine = Machine(sys.argv[1], report, SOFT)
    try:
        for name, limit_s, function in steps(machine):
            if not wanted or any(name.startswith(prefix) for prefix in wanted):
                report.step(name, limit_s, function)
    finally:
        code = report.finish()
        machine.clean()
    return code


if __name__ == "__main__":
    sys.exit(main())
