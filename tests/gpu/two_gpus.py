"""The steps of two_gpus.sh."""

import argparse
import functools
import os
import shutil
import statistics
import sys

from fast_path import (MIB, SOFT, Program, account_text, cycle, gpus, median_s, periodic, settle, this_machine,
                       used_mib)
from harness import Report, StepFailed, StepSkipped, demand, is_alive, wait_until
from ride import Job, Machine, device_files, descendants, ride, sequence_is_whole

CACHE_GIB = os.environ.get("CACHE_GIB", "16")
WIRES_GIB = os.environ.get("WIRES_GIB", "40")
PERIOD = 24  # as in torch_split.py
SWAP = "0=1,1=0"


def started(machine, name, workload, *words, env=None):
    job = Job(machine, name, [machine.workload(workload), *map(str, words)], env=env)
    try:
        job.wait_ready(90)
        job.wait_rounds(3, 60)
    except StepFailed:
        job.kill()
        raise
    return job


class Peers:
    """Replaces PyTorch on softgpu; also shows peer access."""

    def __init__(self, machine, name, count):
        self.machine, self.name, self.count = machine, name, count

    def go(self, _ready_s):
        return started(self.machine, self.name, "peers", "--devices", self.count, "--memory", "64M",
                       "--interval", "20")

    def begin(self):
        pass

    def kill(self):
        pass


def split(machine, name, count, *words, gib=CACHE_GIB):
    if SOFT:
        return Peers(machine, name, count)
    return Program(machine, name, "torch_split.py", "--gpus", str(count), "--cache", gib, *words)


def apart(machine, name, count, *words, gib=CACHE_GIB):
    """Returns the same model as one process per GPU."""
    if SOFT:
        return Family(machine, name, count)
    return Program(machine, name, "torch_apart.py", "--processes", str(count), "--cache", gib, *words)


def begun(program):
    """Returns the program and its number of undisturbed rounds."""
    if isinstance(program, (Peers, Family)):
        return program.go(90), 0
    job = program.go(120)
    job.wait_rounds(2 * PERIOD + 1, 90)
    return job, job.output.count()


def ended(job, undisturbed):
    if undisturbed:
        job.wait_rounds(PERIOD, 60)
    job.finish(120)
    if not undisturbed:
        sequence_is_whole(job.output)
        return "the rounds are whole"
    return periodic(job.output, PERIOD, undisturbed)


class Family:
    """One process per GPU, below a parent without a GPU."""

    def __init__(self, machine, name, count):
        self.machine, self.name, self.count = machine, name, count

    def go(self, _ready_s):
        return started(self.machine, self.name, "tree", "--children", self.count, "--devices", self.count,
                       "--memory", "64M" if SOFT else f"{CACHE_GIB}G", "--interval", "20")

    def begin(self):
        pass

    def kill(self):
        pass


class Split:
    """Compares one GPU with two that hold the same number of bytes each: with two buses the time
    must be the same."""

    def __init__(self, machine, programs, kept=True, one=None):
        """`one`: known results for one GPU."""
        self.machine = machine
        self.programs = programs
        self.kept = kept
        self.one = {} if one is None else one

    def without_the_driver(self, job, count):
        """The same with the contexts kept, which leaves only the time of Stasis."""
        times = []
        for _ in range(4):
            times.append(job.verb("suspend", job.name, "--keep-context").json()["total_s"])
            job.verb("resume", job.name)
            job.wait_rounds(3, 20)
        median = statistics.median(times[1:])
        self.machine.report.number(f"suspend --keep-context on {count} GPU(s), median of 3:", median, "s")
        self.one.setdefault("kept", median)
        if count == 2:
            self.machine.report.number("suspend --keep-context, two GPUs / one:", median / self.one["kept"], "",
                                       None if SOFT else ("<=", 1.15))

    def measure(self, count):
        report = self.machine.report
        job, undisturbed = begun(self.programs[count])
        try:
            cycles = [cycle(job) for _ in range(6)]
            for place, way in enumerate(["suspend", "resume"]):
                accounts = [pair[place] for pair in cycles]
                median = median_s(accounts[1:])
                report.number(f"{way} on {count} GPU(s), cold:", accounts[0]["total_s"], "s")
                report.number(f"{way} on {count} GPU(s), median of 5 warm:", median, "s")
                # Unchanged data is not copied, so the first time is that of all the bytes.
                report.number(f"{way} on {count} GPU(s): device memory", accounts[0]["device_bytes"] / MIB, "MiB")
                if count == 1:
                    self.one[way] = (accounts[0]["total_s"], median)
                elif way in self.one:
                    bar = None if SOFT else ("<=", 1.15)
                    report.number(f"{way}, two GPUs / one, all bytes:", accounts[0]["total_s"] / self.one[way][0],
                                  "", bar if way == "suspend" else None)
                    report.number(f"{way}, two GPUs / one, warm:", median / self.one[way][1], "", bar)
            last = "\n".join(account_text(a) for a in cycles[-1][:2])
            if self.kept:
                self.without_the_driver(job, count)
            return settle(report, last + "\n" + ended(job, undisturbed))
        finally:
            job.kill()


def dumped_and_restored(job, *restore_words, both=()):
    """`both`: options of the dump and of the restore."""
    machine = job.machine
    image = machine.images / job.name
    job.verb("dump", job.name, "-d", machine.images, "--name", job.name, *both, timeout_s=300)
    wait_until(lambda: not is_alive(job.pid), 30, "the end of the dumped program")
    try:
        job.machine.stasis(job.name, "restore", image, "--log", job.output.path, *both, *restore_words,
                           timeout_s=300)
        job.wait_rounds(3, 90)
    finally:
        shutil.rmtree(image, ignore_errors=True)


def exchanged(machine, program, gpu_map=SWAP):
    """Exchanges the GPUs of a program at a resume, twice, and at a restore."""
    report = machine.report
    job, undisturbed = begun(program)
    try:
        stays = [cycle(job) for _ in range(3)]
        moves = [cycle(job, "--gpu-map", gpu_map) for _ in range(2)]
        report.number("resume in its place, median of 3:", median_s([up for _, up, _ in stays]), "s")
        report.number("resume with the GPUs exchanged, mean of 2:", sum(up["total_s"] for _, up, _ in moves) / 2, "s")
        dumped_and_restored(job, "--gpu-map", gpu_map)
        cycle(job)
        dumped_and_restored(job)
        return settle(report, ended(job, undisturbed))
    finally:
        job.kill()


def by_its_own_numbers(machine):
    """CUDA_VISIBLE_DEVICES renumbers the GPUs for the program, or hides one."""
    notes = []
    for visible, first in [("1,0", 1), ("1", 1)]:
        name = "sees-" + visible.replace(",", "-")
        job = started(machine, name, "vector", "--memory", "64M", "--interval", "20",
                      env={"CUDA_VISIBLE_DEVICES": visible})
        try:
            before = [used_mib(machine, n) for n in range(2)]
            demand(before[first] > before[1 - first], f"with {visible} its memory is not on GPU {first}: {before}")
            cycle(job)
            job.verb("suspend", name)
            moved = job.machine.stasis(name, "resume", name, "--gpu-map", f"{first}={1 - first}", expect=None)
            if moved.code != 0:
                # Finds out whether the driver moves a program to a GPU that it cannot see.
                notes.append(f"{visible}: the move is refused: {moved.err.strip().splitlines()[0]}")
                job.verb("resume", name)
            else:
                notes.append(f"{visible}: moved")
                job.wait_rounds(3, 30)
                after = [used_mib(machine, n) for n in range(2)]
                demand(after[1 - first] > after[first], f"moved, and its memory is not there: {after}")
                cycle(job, "--gpu-map", f"{1 - first}={first}")
            dumped_and_restored(job)
            job.finish()
            sequence_is_whole(job.output)
        finally:
            job.kill()
    return "\n".join(notes)


def eight_processes(machine):
    """A tree of eight processes on two GPUs; four of them share each GPU and its mover."""
    job = started(machine, "eight", "tree", "--children", 8, "--devices", 2, "--memory",
                  "8M" if SOFT else "512M", "--interval", "20")
    try:
        accounts = [cycle(job) for _ in range(3)]
        machine.report.number("suspend of eight processes, median of 3:", median_s([a for a, _, _ in accounts]), "s")
        machine.report.number("resume of eight processes, median of 3:", median_s([a for _, a, _ in accounts]), "s")
        cycle(job, "--gpu-map", SWAP)
        dumped_and_restored(job, "--gpu-map", SWAP)
        held = [f for pid in [job.pid, *descendants(job.pid)] for f in device_files(pid)]
        demand(held or SOFT, "no process of the restored tree holds a GPU")
        job.finish()
        sequence_is_whole(job.output)
        return account_text(accounts[-1][0]) + "\n" + account_text(accounts[-1][1])
    finally:
        job.kill()


def data_loader(machine):
    """Training with forked workers through every command. The losses must equal those of an
    undisturbed run, since each worker's items depend only on their index."""
    if SOFT:
        raise StepSkipped("it needs a real GPU")
    rounds, note = ride(machine, "loader", [sys.executable, os.path.join(os.path.dirname(__file__),
                        "torch_training.py"), "--workers", "2"], ready_s=120, rounds_s=60)
    plain = Job(machine, "loader-plain", [sys.executable, os.path.join(os.path.dirname(__file__), "torch_training.py"),
                "--workers", "2", "--rounds", str(len(rounds))])
    try:
        wait_until(lambda: not is_alive(plain.pid), 180, "the end of the undisturbed run")
        same = plain.output.rounds()[:len(rounds)] == rounds
        demand(same, "the losses differ from those of an undisturbed run")
    finally:
        plain.kill()
    return (note + f"\n{len(rounds)} losses as in an undisturbed run").strip()


def two_there(machine):
    this_machine(machine)
    names = [gpu["name"] for gpu in gpus(machine)]
    demand(len(names) >= 2 and names[0] == names[1], f"it needs two GPUs of one model, and there are {names}")


def steps(machine):
    both = Split(machine, {count: split(machine, f"split-{count}", count) for count in (1, 2)})
    families = Split(machine, {count: Family(machine, f"family-{count}", count) for count in (1, 2)})
    # More data than the driver's time for both contexts, all of it changed: this leaves the time of
    # the buses.
    wires = Split(machine, {count: split(machine, f"wires-{count}", count, "--churn", gib=WIRES_GIB)
                            for count in (1, 2)}, kept=False)
    # The driver checkpoints the GPUs of one process one after the other, but those of two processes
    # in parallel.
    wires_apart = Split(machine, {2: apart(machine, "wires-apart", 2, "--churn", gib=WIRES_GIB)}, kept=False,
                        one=wires.one)
    yield "machine", 60, functools.partial(two_there, machine), []
    yield "split-one", 150, functools.partial(both.measure, 1), [both.programs[1]]
    yield "split-two", 150, functools.partial(both.measure, 2), [both.programs[2]]
    yield "family-one", 100, functools.partial(families.measure, 1), []
    yield "family-two", 100, functools.partial(families.measure, 2), []
    yield "wires-one", 200, functools.partial(wires.measure, 1), [wires.programs[1]]
    yield "wires-two", 200, functools.partial(wires.measure, 2), [wires.programs[2]]
    yield "wires-apart", 200, functools.partial(wires_apart.measure, 2), [wires_apart.programs[2]]
    again, peers = split(machine, "swap-split", 2), Peers(machine, "swap-peers", 2)
    yield "swap-split", 240, functools.partial(exchanged, machine, again), [again]
    yield "swap-peers", 120, functools.partial(exchanged, machine, peers), [peers]
    yield "visible", 120, functools.partial(by_its_own_numbers, machine), []
    yield "eight", 150, functools.partial(eight_processes, machine), []
    yield "loader", 300, functools.partial(data_loader, machine), []


def main(name="two_gpus", budget_s=500, its_steps=steps, early=False):
    """`early`: the programs of a step are started at the beginning of the step before it, so that their imports take no
    time."""
    parser = argparse.ArgumentParser(prog=f"{name}.sh")
    parser.add_argument("dist", metavar="DIST_DIR")
    parser.add_argument("out", metavar="OUT_DIR")
    parser.add_argument("steps", metavar="STEP", nargs="*")
    options = parser.parse_args()
    report = Report(options.out, float(os.environ.get("BUDGET_S", budget_s)), name)
    machine = Machine(options.dist, report, SOFT)
    programs = []
    try:
        chosen = [step for step in its_steps(machine)
                  if not options.steps or any(step[0].startswith(prefix) for prefix in options.steps)]
        for place, (step_name, limit_s, function, its) in enumerate(chosen):
            programs += its
            if early and place + 1 < len(chosen):
                programs += chosen[place + 1][3]
                begin_early(report, chosen[place + 1][3])
            report.step(step_name, limit_s, functools.partial(guarded, machine, function, its))
    finally:
        for program in programs:
            program.kill()
        code = report.finish()
        machine.clean()
    return code


def begin_early(report, programs):
    report.step_name = "early"
    for program in programs:
        try:
            program.begin()
        except (StepFailed, StepSkipped, OSError):
            pass  # its step tries again and reports the reason


def guarded(machine, function, its):
    try:
        return function()
    except Exception:
        machine.stasis(None, "recover", timeout_s=30, expect=None)
        raise
    finally:
        for program in its:
            program.kill()


if __name__ == "__main__":
    sys.exit(main())
