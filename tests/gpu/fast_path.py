"""The steps of fast_path.sh."""

import argparse
import functools
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import time

from harness import Report, StepFailed, StepSkipped, demand, is_alive, run, tail, wait_until
from ride import Job, Machine, sequence_is_whole

HERE = pathlib.Path(__file__).resolve().parent
SOFT = os.environ.get("GPU") == "soft"
REPEAT = int(os.environ.get("REPEAT", "20" if SOFT else "200"))
MIB = 1 << 20
GIB = 1 << 30


# Programs.

class Program:
    """A program that imports its modules and touches the GPU only when told to go, so that many can
    be started at once before the measurements."""

    def __init__(self, machine, name, script, *words, env=None, agent=True, imports_s=60, cores=None):
        self.machine, self.name, self.agent, self.imports_s = machine, name, agent, imports_s
        self.fifo = machine.state / f"{name}.orders"
        pinned = ["taskset", "-c", ",".join(map(str, cores))] if cores else []
        self.command = [*pinned, sys.executable, HERE / script, "--orders", self.fifo, *words]
        self.env = env
        self.job = None

    def begin(self):
        if SOFT:
            raise StepSkipped("it needs a real GPU")
        if self.job is None:
            os.mkfifo(self.fifo)
            self.job = Job(self.machine, self.name, self.command, self.env, self.agent)

    def go(self, ready_s=60):
        self.begin()
        wait_until(lambda: self.job.output.has("IMPORTED") or not is_alive(self.job.pid),
                   self.imports_s, f"the imports of {self.name}")
        demand(is_alive(self.job.pid), f"{self.name} has ended:\n{tail(self.job.output.text(), 800)}")
        self.order("go")
        self.job.wait_ready(ready_s)
        return self.job

    def order(self, line):
        fifo = os.open(self.fifo, os.O_RDWR | os.O_NONBLOCK)
        try:
            os.write(fifo, f"{line}\n".encode())
        finally:
            os.close(fifo)

    def batch(self, rounds, timeout_s=30):
        """Returns the seconds for this many rounds, by the program's own clock."""
        def done():
            return re.findall(r"^BATCH \d+ (\S+)$", self.job.output.text(), re.M)

        before = len(done())
        self.order(rounds)
        wait_until(lambda: len(done()) > before or not is_alive(self.job.pid), timeout_s,
                   f"{rounds} rounds of {self.name}")
        demand(len(done()) > before, f"{self.name} has ended:\n{tail(self.job.output.text(), 800)}")
        return float(done()[-1])

    def kill(self):
        if self.job is not None:
            self.job.kill()


class CudartProbe:
    """Builds with nvcc in the background."""

    def __init__(self, machine):
        self.path = machine.state / "cudart_probe"
        self.log = machine.log("nvcc")
        self.nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
        self.process = None

    def begin(self):
        if SOFT:
            raise StepSkipped("it needs a real GPU")
        demand(pathlib.Path(self.nvcc).exists(), f"there is no {self.nvcc}")
        if self.process is None:
            # Do not use -arch=native, which would use the GPU.
            capability = run(["nvidia-smi", "--id=0", "--query-gpu=compute_cap",
                              "--format=csv,noheader"], 30).out.strip()
            command = [self.nvcc, "-cudart", "static", "-O2",
                       f"-arch=sm_{capability.replace('.', '')}", "-o", str(self.path),
                       str(HERE / "cudart_probe.cu")]
            with open(self.log, "w") as log:
                self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log,
                                                stderr=log, start_new_session=True)

    def built(self):
        self.begin()
        try:
            code = self.process.wait(90)
        except subprocess.TimeoutExpired:
            raise StepFailed("nvcc takes more than 90 s") from None
        demand(code == 0, f"nvcc: exit code {code}\n{tail(self.log.read_text(), 1500)}")
        return self.path

    def kill(self):
        if self.process is not None and self.process.poll() is None:
            self.process.kill()


# Measurements.

def parts_text(account):
    """Describes the movers' work within a suspend."""
    if not any(account["save_parts"].values()):
        return ""
    return "of the save: " + ", ".join(f"{name} {s * 1e3:.1f} ms" for name, s in account["save_parts"].items()) + "\n"


def account_text(account):
    """Summarises the account in a few lines, for a failed step."""
    phases = ", ".join(f"{p['name']} {p['seconds']:.3f} s" for p in account["phases"])
    text = (f"{account['verb']} {account['target']}: {account['total_s']:.3f} s, path "
            f"{account['path']}, {account['shared_bytes'] / MIB:.0f} of "
            f"{account['device_bytes'] / MIB:.0f} MiB by the data plane\n{phases}\n"
            + parts_text(account)
            + "".join(f"left to the driver: {why}\n" for why in account["left_to_driver"]))
    return text.strip()


def carried_share(account):
    """Returns the share carried by the data plane, in percent of all device memory of the process with its context."""
    return 100 * account["shared_bytes"] / max(account["device_bytes"], 1)


def used_mib(machine, gpu=0):
    """Returns the used memory of a GPU without its own reserve."""
    if SOFT:
        listed = machine.stasis(None, "gpu", "ls").json()["gpus"][gpu]
        return (listed["total_bytes"] - listed["free_bytes"]) // MIB
    out = run(["nvidia-smi", f"--id={gpu}", "--query-gpu=memory.used",
               "--format=csv,noheader,nounits"], 30).out.strip()
    demand(out.isdigit(), f"nvidia-smi does not say how much memory is used: {out!r}")
    return int(out)


# Memory that the driver may still hold shortly after the last program's end.
ENDED_MIB = 8


def mover_mib(held_mib):
    """Returns the memory that a resident mover may hold: its context, and page tables for
    registered host memory, 8 bytes per 4 KiB."""
    return 300 + held_mib * 8 // 4096 + 4


def used_when_ended(machine, left):
    """Waits until a program that has printed its last line has freed its memory."""
    try:
        wait_until(lambda: used_mib(machine) <= left, 20, "")
    except StepFailed:
        pass
    return used_mib(machine)


def process_size(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    kib = int(re.search(r"^VmRSS:\s+(\d+) kB", status, re.M).group(1))
    maps = pathlib.Path(f"/proc/{pid}/maps").read_text().count("\n")
    return {"RSS": kib / 1024, "fds": len(os.listdir(f"/proc/{pid}/fd")), "maps": maps}


def settle(report, note=""):
    """Finishes a step with bars; the summary has all numbers. Fails if a bar was missed."""
    missed = [n["what"].rstrip(":") for n in report.numbers_of(report.step_name) if not n["good"]]
    demand(not missed, f"{note}\n{len(missed)} missed: {'; '.join(missed)}".strip())
    return note


def periodic(output, period, undisturbed):
    """Checks that every round equals the one a period before; the first `undisturbed` rounds are
    the reference."""
    sequence_is_whole(output)
    values = [value for _, value in output.rounds()]
    demand(undisturbed >= 2 * period, "there was no undisturbed run to compare with")
    demand(len(set(values[:period])) > period // 2, f"hardly any two rounds differ: {values[:period]}")
    first = values[:period]
    demand(values[period:2 * period] == first, "two undisturbed runs differ, so the program is not a valid test")
    wrong = [n for n, value in enumerate(values) if value != first[n % period]]
    demand(not wrong, f"{len(wrong)} of {len(values)} results differ from the undisturbed run's, the "
           f"first is number {wrong[0] + 1 if wrong else 0}, {undisturbed} were undisturbed")
    return f"{len(values)} results, all as in the undisturbed run"


def cycle(job, *resume_words, settle_rounds=3):
    """Suspends and resumes once. Returns both accounts, and the MiB used on the GPU in between."""
    down = job.verb("suspend", job.name).json()
    demand(is_alive(job.pid), "suspend killed the program")
    used = used_mib(job.machine)
    up = job.verb("resume", job.name, *resume_words).json()
    job.wait_rounds(settle_rounds, 20)
    return down, up, used


def median_s(accounts):
    return statistics.median(a["total_s"] for a in accounts)


def carry(machine, name, start, *, period=None, cycles=3, settle_rounds=3, share=95.0, bar_s=None,
          says=""):
    """Suspends and resumes a program several times while it works. `start` returns its job, ready;
    `says`: what it must have printed."""
    report = machine.report
    empty = used_mib(machine)
    job = start()
    try:
        job.wait_rounds(2 * period if period else 3, 60)
        undisturbed = job.output.count()
        held = used_mib(machine)
        downs, ups, used = zip(*[cycle(job, settle_rounds=settle_rounds) for _ in range(cycles)])
        for way, accounts in [("suspend", downs), ("resume", ups)]:
            report.number(f"{way}, cold:", accounts[0]["total_s"], "s")
            report.number(f"{way}, median of {cycles - 1} warm:", median_s(accounts[1:]), "s",
                          ("<=", bar_s) if bar_s else None)
            report.number(f"{way}, slowest of them:", max(a["total_s"] for a in accounts[1:]), "s")
        worst = min(downs, key=carried_share)
        report.number("device bytes of the program:", worst["device_bytes"] / GIB, "GiB")
        enough = report.number("of them by the data plane, least:", carried_share(worst), "%",
                               (">=", share) if share else None)
        report.number(f"used on the GPU: {empty} MiB before, {held} running, most while suspended:",
                      max(used), "MiB", ("<=", empty + mover_mib(held)))
        if period:
            job.wait_rounds(period, 60)
        job.finish()
        note = periodic(job.output, period, undisturbed) if period else "its own checks found nothing"
        last = [line for line in job.output.text().splitlines() if not line.startswith("ROUND")]
        demand(says in job.output.text(), f"it does not say {says!r}: {last}")
        left = empty + mover_mib(held) + ENDED_MIB
        report.number("used after its end:", used_when_ended(machine, left), "MiB", ("<=", left))
    finally:
        job.kill()
    note = "\n".join([" | ".join(last), *([] if enough else [account_text(worst)]),
                      parts_text(downs[-1]).strip(), note])
    return settle(report, note)


# Steps.

def this_machine(machine):
    facts = machine.report.facts
    facts["stasis"] = machine.stasis(None, "version").json()
    facts["kernel"] = os.uname().release
    facts["python"] = sys.executable
    if not SOFT:
        facts["GPU"] = run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total,memory.used",
                            "--format=csv,noheader"], 30).out.strip()
    check = machine.stasis(None, "check", expect=None)
    demand(check.code == 0, f"stasis check finds this machine unable:\n{tail(check.out)}")


def imports(early):
    """Waits for the programs started at the beginning, so that they do not disturb measurements."""
    began = time.monotonic()

    def done(thing):
        if isinstance(thing, Program):
            return thing.job is None or thing.job.output.has("IMPORTED") or not is_alive(thing.job.pid)
        return thing.process is None or thing.process.poll() is not None

    wait_until(lambda: all(done(thing) for thing in early), 60, "the end of the imports and of nvcc")
    return f"waited {time.monotonic() - began:.1f} s for {len(early)} of them"


def start_vector(machine, name, memory, agent=True, interval=20):
    job = Job(machine, name, [machine.workload("vector"), "--memory", memory, "--interval",
                              str(interval)], agent=agent)
    try:
        job.wait_ready(60)
    except StepFailed:
        job.kill()
        raise
    return job


def start_probe(machine, probe, name, *words):
    job = Job(machine, name, [probe.built(), *words])
    try:
        job.wait_ready(60)
    except StepFailed:
        job.kill()
        raise
    return job


def gate_cost(machine, probe):
    """Measures nanoseconds of calls: alternately by the driver's own addresses and by those that a program gets, in one
    process; and in processes with and without the agent, which differ in more than the agent."""
    report = machine.report
    built = probe.built()
    calls = {True: {}, False: {}}
    pairs = {}
    for n in range(4):
        for agent in [True, False]:
            job = Job(machine, f"calls-{'with' if agent else 'without'}-{n}", [built, "--calls"],
                      agent=agent)
            try:
                wait_until(lambda j=job: not is_alive(j.pid), 30, "the end of the probe")
                demand(job.output.has("EXIT-SUCCESS"), tail(job.output.text(), 400))
            finally:
                job.kill()
            for call, ns in re.findall(r"^CALL (\S+) (\S+)$", job.output.text(), re.M):
                calls[agent].setdefault(call, []).append(float(ns))
            for call, *both in re.findall(r"^PAIR (\S+) (\S+) (\S+)$", job.output.text(), re.M):
                if agent:
                    pairs.setdefault(call, []).append([float(ns) for ns in both])
    demand(pairs and calls[True] and calls[False], "the probe printed nothing")
    for call, both in pairs.items():
        plain, given = statistics.median(p for p, _ in both), statistics.median(g - p for p, g in both)
        report.number(f"{call}: {plain:.1f} ns, through the hook more:", given, "ns", ("<=", 20.0))
    for call in calls[True]:
        # The minimum over several processes, because other load on the machine only adds time.
        plain, under = min(calls[False][call]), min(calls[True][call])
        report.number(f"{call}: {plain:.1f} ns, in a process with the agent more:", under - plain, "ns")
    return settle(report)


def overhead(machine, programs, rounds, turns):
    """Processes of the same program, with and without the agent, take turns in short batches on the
    same cores. Other load only adds time, so the faster quarter of each process counts. Processes
    of one kind differ by chance, so the best of each kind are compared; their spread shows the
    precision of the comparison."""
    report = machine.report
    kinds = {"with the agent": [p for p in programs if p.agent], "without": [p for p in programs if not p.agent]}
    try:
        for program in programs:
            program.go()
            for _ in range(3):
                program.batch(rounds)

        def quarters(count):
            took = {program: [] for program in programs}
            for n in range(count):
                # A later process finds a warmer machine, so each one takes each position equally
                # often.
                for program in programs[n % len(programs):] + programs[:n % len(programs)]:
                    took[program].append(program.batch(rounds) / rounds)
            return {program: statistics.quantiles(seconds, n=4)[0] for program, seconds in took.items()}

        before = quarters(turns)
        best = {}
        for kind, its in kinds.items():
            seconds = sorted(before[program] for program in its)
            best[kind] = seconds[0]
            report.number(f"{kind}, rounds/s of the best of {len(its)} processes:", 1 / seconds[0], "1/s")
            report.number(f"{kind}, its processes lie apart by", 100 * (seconds[-1] / seconds[0] - 1), "%")
        under, plain = best.values()
        report.number("overhead, best of each kind:", 100 * (under / plain - 1), "%", ("<=", 1.0))

        for program in kinds["with the agent"]:
            for verb in ["suspend", "resume"]:
                program.job.verb(verb, program.name)
        for program in programs:
            for _ in range(3):
                program.batch(rounds)
        after = quarters(turns)
        # Each process is compared with itself, because its memory layout stays the same.
        change = {kind: statistics.median(after[program] / before[program] for program in its)
                  for kind, its in kinds.items()}
        under, plain = change.values()
        report.number("after a suspend and a resume, slower than those without the agent became:",
                      100 * (under / plain - 1), "%", ("<=", 1.0))
        for program in kinds["with the agent"]:
            program.job.finish()
    finally:
        for program in programs:
            program.kill()
    return settle(report)


def used_by(job):
    """Returns the MiB that nvidia-smi reports for a program."""
    out = run(["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"],
              30).out
    rows = [line.split(", ") for line in out.splitlines() if ", " in line]
    return sum(int(row[1]) for row in rows if int(row[0]) == job.pid)


def waste(machine, programs):
    """Compares GPU memory of the same tensors with and without the agent, at the peak and after
    freeing a random half."""
    report = machine.report
    under, plain = programs
    try:
        for program in programs:
            program.go()
        for stage in ["at the peak", "after a random half was freed"]:
            for program in programs:
                program.batch(1, 60)
            more, base = used_by(under.job) - used_by(plain.job), used_by(plain.job)
            report.number(f"{stage}: {base} MiB without the agent, with it more:", more, "MiB",
                          ("<=", max(64, 0.03 * base)))
        for program in programs:
            program.job.finish()
    finally:
        for program in programs:
            program.kill()
    return settle(report)


def repeated(machine, name, agent, times, share_of_time):
    """Suspends a 1 GiB workload repeatedly. Reports the growth since the fifth suspend, and the
    number of suspends."""
    report = machine.report
    until = time.monotonic() + share_of_time * (report.left_s() - 15)
    empty = used_mib(machine)
    job = start_vector(machine, name, "64M" if SOFT else "1G", agent, 5)
    sizes = {"suspended": [], "running": []}
    times_s = {"suspend": [], "resume": []}

    def once(watched):
        for verb, state in [("suspend", "suspended"), ("resume", "running")]:
            times_s[verb].append(machine.stasis(None, verb, name).json()["total_s"])
            if watched:
                if state == "running":
                    job.wait_rounds(2, 20)
                sizes[state].append({**process_size(job.pid), "VRAM": used_mib(machine) - empty})

    try:
        job.wait_rounds(3, 20)
        done = 0
        while done < times - 1 and (time.monotonic() < until or done < 6):
            done += 1
            once(watched=done % 25 == 5)
        once(watched=True)
        done += 1
        job.wait_rounds(2, 20)
        job.finish()
        sequence_is_whole(job.output)
    finally:
        job.kill()
    growth = {f"{what} while {state}: {seen[0][what]:.0f} at the fifth suspend":
              seen[-1][what] - seen[0][what] for state, seen in sizes.items() for what in seen[0]}
    for verb, seconds in times_s.items():
        report.number(f"{verb}, median of the first ten:", statistics.median(seconds[:10]), "s")
        report.number(f"{verb}, median of the last ten:", statistics.median(seconds[-10:]), "s")
    report.number("used after its end, beyond what was before:", used_mib(machine) - empty, "MiB")
    return growth, done


class Repeat:
    """Runs the driver's own loop first, then Stasis for comparison."""

    # Fluctuations that are not leaks: name, size, and unit.
    SLACK = {"RSS": (8, "MiB"), "fds": (0, ""), "maps": (8, ""), "VRAM": (8, "MiB")}

    def __init__(self, machine):
        self.machine = machine
        self.driver = {}  # growth per suspend

    def by_driver(self):
        growth, done = repeated(self.machine, "repeat-driver", False, max(REPEAT // 10, 10), 0.3)
        self.show(growth, done, bars=False)
        return settle(self.machine.report)

    def by_us(self):
        growth, done = repeated(self.machine, "repeat", True, REPEAT, 1.0)
        self.show(growth, done, bars=True)
        return settle(self.machine.report,
                      f"{done} suspends in a row" + ("" if done == REPEAT else ": no time for more"))

    def show(self, growth, done, bars):
        more = done - 5
        for what, grown in growth.items():
            thing = what.split(":")[0]
            slack, unit = self.SLACK[what.split()[0]]
            bar = ("<=", slack + self.driver.get(thing, 0) * more) if bars else None
            self.machine.report.number(f"{what}, in {more} more it grew by", grown, unit, bar)
            if not bars:
                self.driver[thing] = max(grown, 0) / more


def gpus(machine):
    return machine.stasis(None, "gpu", "ls").json()["gpus"]


def gpus_of(machine, job):
    """Returns the indices of the GPUs on which the program has memory, on a real machine from
    nvidia-smi."""
    uuids = [gpu["uuid"] for gpu in gpus(machine)]
    if SOFT:
        return [n for n in range(len(uuids)) if used_mib(machine, n) >= 32]
    out = run(["nvidia-smi", "--query-compute-apps=pid,gpu_uuid", "--format=csv,noheader"], 30).out
    rows = [line.split(", ") for line in out.splitlines() if ", " in line]
    return sorted({uuids.index(row[1].strip()) for row in rows if int(row[0]) == job.pid})


def moved(machine, start, period=None):
    """Moves to the other GPU and back, three times, beside resumes on the same GPU."""
    report = machine.report
    seen = len(gpus(machine))
    if seen < 2:
        raise StepSkipped("there is one GPU only")
    job = start()
    try:
        job.wait_rounds(2 * period if period else 3, 60)
        undisturbed = job.output.count()
        cycle(job)
        stays = [cycle(job) for _ in range(4)]
        moves = []
        for n in range(6):
            here, there = n % 2, 1 - n % 2
            moves.append(cycle(job, "--gpu-map", f"{here}={there}"))
            found = gpus_of(machine, job)
            demand(found == [there], f"moved to GPU {there}, but it has memory on {found}\n"
                   + account_text(moves[-1][1]))
        if period:
            job.wait_rounds(period, 60)
        job.finish()
        note = periodic(job.output, period, undisturbed) if period else "its own checks found nothing"
    finally:
        job.kill()
    for place, way in enumerate(["suspend", "resume"]):
        stay = median_s([pair[place] for pair in stays])
        move = median_s([pair[place] for pair in moves])
        report.number(f"{way} in its place, median of 4:", stay, "s")
        report.number(f"{way} of a move, median of 6:", move, "s")
        report.number(f"{way}: move / stay:", move / stay, "", None if SOFT else ("<=", 1.1))
    slowest = max(moves, key=lambda pair: pair[1]["total_s"])[1]
    return settle(report, "slowest: " + account_text(slowest) + "\n" + note)


def steps(machine):
    """Yields (name, time limit in seconds, function, programs that may start early). The longest
    steps come last."""
    def program(name, script, *words, **options):
        return Program(machine, name, script, *map(str, words), **options)

    def by_program(one, **options):
        return functools.partial(carry, machine, one.name, one.go, **options)

    tokens = 48
    llama = program("torch", "torch_llama.py", "--cache", 20, "--tokens", tokens)
    expandable = program("torch-expandable", "torch_llama.py", "--layers", 8, "--cache", 12, "--tokens",
                         24, env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})
    # A fixed share; otherwise the pool would take three quarters of the GPU.
    jax = program("jax", "jax_loop.py", "--memory", 16, env={"XLA_PYTHON_CLIENT_PREALLOCATE": "false"})
    jax_pool = program("jax-preallocated", "jax_loop.py", "--memory", 8, env={
        "XLA_PYTHON_CLIENT_PREALLOCATE": "true", "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.2"})
    cupy = program("cupy", "cupy_loop.py", "--memory", 16)
    def both_kinds(name, script, *words):
        """Three processes of each kind, in turns, on the same cores and as similar as possible."""
        cores = sorted(os.sched_getaffinity(0))[-4:]
        return [program(f"{name}-{'with' if agent else 'without'}-{n}", script, *words, "--batches",
                        env={"PYTHONHASHSEED": "0"}, agent=agent, cores=cores)
                for n in range(3) for agent in (True, False)]

    speakers = both_kinds("tokens", "torch_llama.py", "--layers", 16)
    learners = both_kinds("training", "torch_training.py")
    hoarders = [program(f"waste-{'with' if agent else 'without'}", "torch_waste.py", "--batches",
                        agent=agent) for agent in (True, False)]
    mover = program("move-torch", "torch_llama.py", "--layers", 4, "--cache", 2, "--tokens", 24)
    probe = CudartProbe(machine)
    repeat = Repeat(machine)

    yield "machine", 30, functools.partial(this_machine, machine), []
    # Nothing is timed here, so the other programs import meanwhile.
    yield "repeat-driver", 60, repeat.by_driver, []
    yield "imports", 70, None, []
    yield "vector", 60, functools.partial(
        carry, machine, "vector",
        lambda: start_vector(machine, "vector", "256M" if SOFT else "16G"),
        share=80.0 if SOFT else 95.0), []
    yield "torch", 100, by_program(llama, period=tokens, cycles=5, settle_rounds=8, bar_s=0.9), [llama]
    yield "cudart", 60, functools.partial(
        carry, machine, "cudart",
        lambda: start_probe(machine, probe, "cudart", "--memory", "16")), [probe]
    # The driver saves its large stacks, so there is no bar for the data plane's share.
    yield "stack-cudart", 60, functools.partial(
        carry, machine, "stack-cudart",
        lambda: start_probe(machine, probe, "stack-cudart", "--stack"), share=None), [probe]
    yield "torch-expandable", 80, by_program(
        expandable, period=24, settle_rounds=8, says="expandable segments: True"), [expandable]
    yield "jax", 60, by_program(jax, period=8), [jax]
    yield "jax-preallocated", 60, by_program(jax_pool, period=8), [jax_pool]
    yield "cupy", 60, by_program(cupy, period=8), [cupy]
    yield "overhead-tokens", 120, functools.partial(overhead, machine, speakers, 4, 30), speakers
    yield "overhead-training", 120, functools.partial(overhead, machine, learners, 4, 20), learners
    yield "waste", 60, functools.partial(waste, machine, hoarders), hoarders
    yield "gate-cost", 60, functools.partial(gate_cost, machine, probe), [probe]
    yield "repeat", 300, repeat.by_us, []
    yield "move-vector", 90, functools.partial(
        moved, machine, lambda: start_vector(machine, "move-vector", "256M" if SOFT else "8G")), []
    yield "move-torch", 120, functools.partial(moved, machine, mover.go, period=24), [mover]


def guarded(machine, function, early):
    """Leaves nothing of a step behind, however it ends."""
    try:
        return function()
    except Exception:
        machine.stasis(None, "recover", timeout_s=30, expect=None)
        raise
    finally:
        for thing in early:
            if isinstance(thing, Program):
                thing.kill()


def main():
    parser = argparse.ArgumentParser(prog="fast_path.sh")
    parser.add_argument("dist", metavar="DIST_DIR")
    parser.add_argument("out", metavar="OUT_DIR")
    parser.add_argument("steps", metavar="STEP", nargs="*")
    parser.add_argument("--gpus", type=int, choices=[1, 2], default=1)
    options = parser.parse_intermixed_args()
    report = Report(options.out, float(os.environ.get("BUDGET_S", "350")), "fast_path")
    machine = Machine(options.dist, report, SOFT)

    def wanted(name):
        if options.steps:
            return any(name.startswith(prefix) for prefix in options.steps)
        return name == "machine" or name.startswith("move-") == (options.gpus == 2)

    chosen = [step for step in steps(machine) if wanted(step[0]) or step[0] == "imports"]
    early = [thing for step in chosen for thing in step[3]]
    try:
        for thing in early:
            try:
                report.step_name = "early"
                thing.begin()
            except (StepFailed, StepSkipped, OSError):
                pass  # its step tries again and reports the reason
        for name, limit_s, function, its in chosen:
            function = function or functools.partial(imports, early)
            report.step(name, limit_s, functools.partial(guarded, machine, function, its))
    finally:
        for thing in early:
            thing.kill()
        code = report.finish()
        machine.clean()
    return code


if __name__ == "__main__":
    sys.exit(main())
