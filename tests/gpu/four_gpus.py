"""The steps of four_gpus.sh."""

import functools
import os
import pathlib
import signal
import subprocess
import sys

from fast_path import ENDED_MIB, GIB, SOFT, Program, account_text, cycle, gpus, gpus_of, median_s, settle, this_machine
from fast_path import used_mib
from harness import StepFailed, demand, is_alive, run, tail, wait_until
from nccl import Ranks
from ride import descendants, sequence_is_whole
from single import helpers
from two_gpus import Family, apart, begun, dumped_and_restored, ended, exchanged, main, split, started

CACHE_GIB = os.environ.get("CACHE_GIB", "40")
LAYERS = os.environ.get("LAYERS", "16")
TCP = ("--tcp", "keep")
KINDS = ["--collectives", "all-reduce", "all-gather", "point-to-point"]
# Many collectives are in flight when the gates close.
AHEAD = ["--ahead", "50", "--megabytes", "4", "--interval", "0"]
# NCCL registers memory of handles when it captures a graph.
REGISTERED = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}

# Phases after which the command is killed.
KILLS = [("suspend", "gate-close"), ("suspend", "data-release"), ("suspend", "gpu-checkpoint"),
         ("suspend", "data-commit"), ("resume", "load-room"), ("resume", "gpu-restore"), ("resume", "data-load"),
         ("resume", "data-return")]


def all_there(machine, count):
    this_machine(machine)
    names = [gpu["name"] for gpu in gpus(machine)][:count]
    demand(count >= 2 and len(names) == count and len(set(names)) == 1,
           f"it needs two or more GPUs of one model, and there are {names}")
    return f"{count} GPUs"


def end(job):
    """Kills all processes of the job and waits for their end, because a process that still holds a GPU
    disturbs the next program."""
    pids = [job.pid, *descendants(job.pid)]
    job.kill()
    # Children of a dead rank 0 are no longer below it, but they belong to the job.
    job.machine.stasis(None, "kill", job.name, "--signal", "KILL", expect=None)
    try:
        wait_until(lambda: not any(map(is_alive, pids)), 30, f"the end of {job.name}")
    except StepFailed as failure:
        # This failure must not hide why the step itself failed.
        job.machine.report.facts[f"after step {job.machine.report.step_name}"] = str(failure)


# NCCL.

def ranks_of(machine, name, count, *words, env=None):
    """Ranks that exchange data; on softgpu a tree of processes that share memory."""
    ring = [machine.workload("ring"), "--children", str(2 * count), "--devices", str(count), "--memory", "1M",
            "--interval", "20"]
    return Ranks(machine, name, (env or {}, ["--ranks", str(count), *words], None), ring if SOFT else None)


def with_ranks(ranks, function):
    """Starts the ranks, calls the function, and ends all of their processes."""
    def body():
        ranks.begin()
        ranks.job.wait_ready(120)
        ranks.job.wait_rounds(5, 60)
        return function(ranks)

    try:
        return ranks.guarded(body)
    finally:
        if ranks.job:
            end(ranks.job)


def ten_times(ranks):
    """Ten suspends and resumes in the middle of collectives, a dump, a restore, a suspend and resume."""
    return f"{ranks.suspend(times=3 if SOFT else 10)}\n{ranks.dump()}"


def three_times(ranks):
    return f"{ranks.suspend(times=3)}\n{ranks.dump()}"


def rotated(ranks, rotation):
    """Moves every rank to the next GPU, at a resume and at a restore."""
    machine, job = ranks.machine, ranks.job
    seen = [] if SOFT else [gpus_of(machine, job)]
    for words in ([], ["--gpu-map", rotation]):
        cycle(job, *words)
        seen += [] if SOFT else [gpus_of(machine, job)]
    # In a container nvidia-smi may not list processes.
    demand(not any(seen) or seen == [[0], [0], [1]], f"rank 0 had memory on GPUs {seen}")
    dumped_and_restored(job, "--gpu-map", rotation, both=TCP)
    cycle(job)
    job.finish()
    sequence_is_whole(job.output)
    return f"{job.output.count()} rounds, all right; GPUs of rank 0: {seen}"


# A model.

def generation(machine, program):
    """The tokens after suspends, a dump and a restore equal those of the undisturbed run."""
    report = machine.report
    job, undisturbed = begun(program)
    try:
        cycles = [cycle(job) for _ in range(3)]
        for place, way in enumerate(["suspend", "resume"]):
            report.number(f"{way}, median of 3:", median_s([pair[place] for pair in cycles]), "s")
        report.number("device memory:", cycles[-1][0]["device_bytes"] / GIB, "GiB")
        dumped_and_restored(job, both=TCP)
        cycle(job)
        return settle(report, ended(job, undisturbed))
    finally:
        end(job)


# Killed processes.

def struck(machine, fault, *words):
    """Runs a command with a fault at one of its phases."""
    machine.env["STASIS_FAULT"] = fault
    try:
        return machine.stasis(None, *words, expect=None)
    finally:
        del machine.env["STASIS_FAULT"]


def state_of(job):
    listed = job.machine.stasis(None, "ps").json()["jobs"]
    return next((entry["state"] for entry in listed if entry["id"] == job.name), "not listed")


def goes_on(job):
    """Recovers, resumes the program if it is suspended, and waits for rounds. Returns its state before
    the resume."""
    job.machine.stasis(None, "recover")
    state = state_of(job)
    demand(state in ("running", "suspended"), f"the state of {job.name} is {state!r}")
    if state == "suspended":
        job.machine.stasis(None, "resume", job.name)
    job.wait_rounds(3, 60)
    return state


def kill_the_command(job):
    """Kills the command after each of the phases. All processes continue, with the right data."""
    ends = []
    for verb, phase in KILLS:
        if verb == "resume":
            job.machine.stasis(None, "suspend", job.name)
        done = struck(job.machine, f"{phase}:after:die", verb, job.name)
        demand(done.code == -9, f"{verb} was to die after {phase}: exit code {done.code}\n{tail(done.err, 800)}")
        ends.append(f"{verb} killed after {phase}: {goes_on(job)} after recover")
    cycle(job)
    job.finish()
    sequence_is_whole(job.output)
    return "\n".join(ends)


def ring(machine, name, count):
    """Processes that share memory: two on each GPU."""
    return started(machine, name, "ring", "--children", 2 * count, "--devices", count, "--memory",
                   "1M" if SOFT else "1G", "--interval", "20")


def command_killed(machine, count):
    job = ring(machine, "kill-command", count)
    try:
        return kill_the_command(job)
    finally:
        end(job)


def without_a_mover(machine, verb, job, phase):
    """Runs a command that is held before the phase until one of its movers has been killed. Returns a
    description."""
    hold = machine.state / "hold"
    hold.touch()
    # The command kills this process first, which shows that it has reached the phase.
    sign = subprocess.Popen(["sleep", "600"])
    fault = f"{phase}:before:kill={sign.pid},{phase}:before:hold={hold}"
    command = subprocess.Popen([machine.dist / "bin" / "stasis", verb, job.name], stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               env={**machine.env, "STASIS_FAULT": fault})
    try:
        sign.wait(60)
        movers = helpers(machine, "stasis-mover")
        demand(movers, f"there is no mover in {phase}")
        os.kill(movers[-1], signal.SIGKILL)
        hold.unlink()
        said, _ = command.communicate(timeout=90)
    except subprocess.TimeoutExpired:
        raise StepFailed(f"{verb} hangs, with a mover killed before {phase}") from None
    finally:
        for process in (sign, command):
            process.kill()
            process.wait()
    with open(machine.log(machine.report.step_name), "a") as log:
        log.write(said)
    demand(command.returncode in (0, 1, 5, 6), f"{verb}: exit code {command.returncode}\n{tail(said, 800)}")
    return f"{verb} with 1 of {len(movers)} movers killed before {phase}: exit code {command.returncode}"


def mover_killed(machine, count):
    """Kills one mover in the middle of a suspend and of a resume. The operation succeeds or is undone."""
    job = ring(machine, "kill-mover", count)
    try:
        ends = []
        for verb, phase in (("suspend", "data-save"), ("resume", "data-load")):
            if verb == "resume":
                machine.stasis(None, "suspend", job.name)
            note = without_a_mover(machine, verb, job, phase)
            ends.append(f"{note}, then {goes_on(job)}")
        cycle(job)
        job.finish()
        sequence_is_whole(job.output)
        return "\n".join(ends)
    finally:
        end(job)


def used(machine, count):
    """Returns the used MiB of each GPU without resident movers."""
    machine.stasis(None, "arena", "free", expect=None)
    return [used_mib(machine, n) for n in range(count)]


def freed(machine, before):
    def rest():
        return [now - then for now, then in zip(used(machine, len(before)), before)]

    try:
        wait_until(lambda: max(rest()) <= ENDED_MIB, 30, "")
    except StepFailed:
        raise StepFailed(f"all have ended, and this many MiB more are used on the GPUs: {rest()}") from None


def strike_one(job, doomed):
    """Kills one process of the program in the middle of a suspend."""
    done = struck(job.machine, f"data-release:after:kill={doomed}", "suspend", job.name)
    demand(not is_alive(doomed), f"process {doomed} still runs")
    demand(done.code in (0, 1, 5, 6), f"exit code {done.code}\n{tail(done.err, 800)}")
    demand(str(doomed) in done.err, f"it does not name process {doomed}:\n{tail(done.err, 800)}")
    job.machine.stasis(None, "recover", expect=None)
    return f"exit code {done.code}: {tail(done.err.strip(), 300)}"


def child_killed(machine, count):
    """The others share nothing with the dead process: they get their memory back, verify it, and
    exit."""
    before = used(machine, count)
    job = started(machine, "kill-child", "tree", "--children", 2 * count, "--devices", count, "--memory",
                  "1M" if SOFT else "1G", "--interval", "20")
    try:
        children = descendants(job.pid)
        note = strike_one(job, children[-1])
        wait_until(lambda: not any(map(is_alive, [job.pid, *children])), 60, "the exit of the others")
        wrong = [line for line in job.output.text().splitlines()
                 if line.startswith("FAILED") and not any(said in line for said in ("has ended", "Broken pipe"))]
        demand(not wrong, f"after the death of one process: {wrong}")
        freed(machine, before)
        return f"{note}\nthe other {len(children) - 1} exited, their memory right"
    finally:
        end(job)


def is_rank(pid):
    try:
        return SOFT or b"--rank\0" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def rank_killed(machine, count):
    """The other ranks cannot finish their collectives, but the machine must work: new ranks run and
    are suspended."""
    def strike(ranks):
        pids = [pid for pid in descendants(ranks.job.pid) if is_rank(pid)]
        demand(pids, "rank 0 has no children")
        note = strike_one(ranks.job, pids[-1])
        left = sum(map(is_alive, [ranks.job.pid, *pids]))
        return f"{note}\n{left} of {len(pids)} other processes left, state {state_of(ranks.job)}"

    before = used(machine, count)
    note = with_ranks(ranks_of(machine, "kill-rank", count, *AHEAD, *KINDS), strike)
    machine.stasis(None, "recover", expect=None)
    freed(machine, before)
    again = ranks_of(machine, "after-kill-rank", count, *AHEAD, *KINDS)
    return f"{note}\nnew ranks: {with_ranks(again, lambda ranks: ranks.suspend(times=1))}"


# The time of each phase.

class Scale:
    """Suspend and resume of programs on 1, 2, 4, … GPUs that change all their memory in each round."""

    def __init__(self, machine):
        self.machine = machine
        self.accounts = {}  # of the second suspend and resume: (kind, verb) -> number of GPUs -> account

    def measure(self, kind, count, program):
        report = self.machine.report
        job, undisturbed = begun(program)
        try:
            cold, warm = cycle(job), cycle(job)
            for place, verb in enumerate(["suspend", "resume"]):
                self.accounts.setdefault((kind, verb), {})[count] = warm[place]
                report.number(f"{verb} of {kind} on {count} GPU(s), first:", cold[place]["total_s"], "s")
                report.number(f"{verb} of {kind} on {count} GPU(s), second:", warm[place]["total_s"], "s")
            report.number("moved by the data plane:", warm[0]["shared_bytes"] / GIB, "GiB")
            note = ended(job, undisturbed)
            return "\n".join([*(account_text(account) for account in warm[:2]), note])
        finally:
            end(job)

    def table(self):
        demand(self.accounts, "nothing was measured")
        blocks = [phase_table(f"{verb} of {kind}", accounts) for (kind, verb), accounts in self.accounts.items()]
        text = "\n\n".join(blocks)
        (self.machine.report.out / "phases.txt").write_text(text + "\n")
        return text


def seconds_of(account):
    """Returns the seconds of each phase and part by name, in order, and their total. A name of an inner
    phase is indented."""
    found = {}
    for phase in account["phases"]:
        name = "  " * phase["depth"] + phase["name"]
        found[name] = found.get(name, 0) + phase["seconds"]
    found.update({f"  part {name}": seconds for name, seconds in account["save_parts"].items() if seconds})
    return {**found, "total": account["total_s"]}


def phase_table(title, accounts):
    counts = sorted(accounts)
    columns = {count: seconds_of(accounts[count]) for count in counts}
    rows = list(dict.fromkeys(name for count in reversed(counts) for name in columns[count]))
    rows.sort(key=lambda name: name == "total")
    lines = [f"{title + ', ms':36}" + "".join(f"{f'{count} GPUs':>10}" for count in counts) + f"{'last/first':>12}"]
    for name in rows:
        ms = [1e3 * columns[count].get(name, 0) for count in counts]
        ratio = f"{ms[-1] / ms[0]:12.2f}" if ms[0] else f"{'-':>12}"
        lines.append(f"{name:36}" + "".join(f"{value:10.1f}" for value in ms) + ratio)
    return "\n".join(lines)


# All steps.

def gpu_count():
    if SOFT:
        return int(os.environ["SOFTGPU_DEVICES"])
    listed = sum(line.startswith("GPU ") for line in run(["nvidia-smi", "--list-gpus"], 30).out.splitlines())
    return int(os.environ.get("GPUS", listed))


def steps(machine):
    count = gpu_count()
    counts = [n for n in (1, 2, 4, 8) if n <= count]
    rotation = ",".join(f"{n}={(n + 1) % count}" for n in range(count))
    scale = Scale(machine)

    def ranks_step(name, function, *words, env=None):
        return functools.partial(with_ranks, ranks_of(machine, name, count, *words, env=env), function)

    tensor = Family(machine, "tensor", counts[-1]) if SOFT else Program(
        machine, "tensor", "torch_llama.py", "--ranks", str(counts[-1]), "--layers", LAYERS, "--tokens", "24")
    turned = split(machine, "rotate", count, gib="2")
    rotate_ranks = functools.partial(rotated, rotation=rotation)

    yield "machine", 60, functools.partial(all_there, machine, count), []
    yield "nccl", 150, ranks_step("nccl", ten_times, *AHEAD, *KINDS), []
    yield "graph", 150, ranks_step("graph", ten_times, *AHEAD, *KINDS[:3], "--graph"), []
    yield "tensor", 240, functools.partial(generation, machine, tensor), [tensor]
    yield "kill-command", 120, functools.partial(command_killed, machine, count), []
    yield "kill-mover", 90, functools.partial(mover_killed, machine, count), []
    yield "kill-child", 90, functools.partial(child_killed, machine, count), []
    yield "kill-nccl-command", 150, ranks_step("kill-nccl-command", lambda ranks: kill_the_command(ranks.job),
                                               *AHEAD, *KINDS), []
    yield "kill-nccl-rank", 180, functools.partial(rank_killed, machine, count), []
    yield "rotate", 240, functools.partial(exchanged, machine, turned, rotation), [turned]
    for n in counts:
        for kind, make in (("one process", split), ("a process for each", apart)):
            name = f"scale-{'one' if make is split else 'each'}-{n}"
            program = make(machine, name, n, "--churn", gib=CACHE_GIB)
            yield name, 200, functools.partial(scale.measure, kind, n, program), [program]
    yield "scale-table", 30, scale.table, []
    yield "extra-rotate-nccl", 150, ranks_step("extra-rotate-nccl", rotate_ranks, *AHEAD, *KINDS), []
    yield "extra-graph-all", 150, ranks_step("extra-graph-all", three_times, *AHEAD, *KINDS, "--graph"), []
    yield "extra-graph-registered", 150, ranks_step("extra-graph-registered", three_times, *AHEAD, *KINDS[:3],
                                                    "--graph", env=REGISTERED), []


if __name__ == "__main__":
    sys.exit(main("four_gpus", 540, steps, early=not SOFT))
