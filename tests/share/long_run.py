"""The steps of long_run.sh."""

import argparse
import functools
import json
import os
import pathlib
import re
import signal
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "gpu"), str(HERE.parent / "stage")]
from harness import Report, demand, is_alive, tail, wait_until  # noqa: E402
import isolate  # noqa: E402
from ride import Machine  # noqa: E402

FULL_MIB = 3072
PARTS_OF_MEMORY = 20  # the run needs at most so many times the memory of one program
SECONDS_OF_USE = float(os.environ.get("SECONDS_OF_USE", "60"))
KILL_EVERY_S = float(os.environ.get("KILL_EVERY_S", "4"))
REST_S = os.environ.get("REST_S", "3")
BUDGET_S = float(os.environ.get("BUDGET_S", "1500"))
ROUND_S = 600  # for a round, and until a program is ready: it may wait for the turns of several others
ROUNDS_AFTER = 2


def program_mib():
    if "SHARE_MEMORY" in os.environ:
        return int(os.environ["SHARE_MEMORY"])
    free = re.search(r"^MemAvailable: +(\d+) kB", pathlib.Path("/proc/meminfo").read_text(), re.M)
    return min(FULL_MIB, (int(free.group(1)) >> 10) // PARTS_OF_MEMORY)


def gpu_mib(mib):
    # A small one must also have room for the contexts.
    return max(mib * 8 // 3, mib * 2 + 80)


class Program:
    def __init__(self, machine, name, *options):
        self.name, self.log = name, machine.log(name)
        self.start = functools.partial(
            machine.stasis, None, "run", "--share", "--job", name, "--log", self.log, "--", sys.executable, "-B",
            HERE / "sharer.py", "--seed", sum(name.encode()), "--rest", REST_S, *options)

    def text(self):
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def check(self):
        demand("WRONG" not in self.text() and "Error" not in self.text(), f"{self.name}: {tail(self.text(), 800)}")

    def waits(self):
        """Returns how long its first GPU call took in each round."""
        return [float(seconds) for seconds in re.findall(r"^round \d+ waited (\S+)$", self.text(), re.M)]

    def await_rounds(self, count):
        def there():
            self.check()
            return len(self.waits()) >= count
        wait_until(there, ROUND_S, f"round {count} of {self.name}")

    def failed_allocations(self):
        return self.text().count("out of memory")


class Daemon:
    def __init__(self, machine):
        self.machine, self.pid, self.kills = machine, 0, 0

    def start(self):
        self.pid = self.machine.stasis(None, "daemon", "start").json()["pid"]

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        self.kills += 1
        wait_until(self.has_ended, 30, "the end of the daemon")

    def has_ended(self):
        if os.getpid() == 1 and is_alive(self.pid) is False:
            # In a pid namespace of its own, this process reaps the daemon.
            try:
                os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                pass
        return not pathlib.Path(f"/proc/{self.pid}").exists()


class Run:
    def __init__(self, machine, mib):
        self.machine, self.daemon, self.mib = machine, Daemon(machine), mib
        self.six = [Program(machine, f"p{number}", "--mib", mib) for number in range(5)]
        self.six.append(Program(machine, "grows", "--mib", mib, "--grow", mib // 2))
        wide = ("--mib", mib * 3 // 2, "--first", 1, "--gpus", 2)
        self.programs = [*self.six, *(Program(machine, name, *wide) for name in ("wide-a", "wide-b"))]
        self.problems = set()
        self.failed_swaps = 0

    def shares(self):
        rows = {row["job"]: row for row in self.machine.stasis(None, "share").json()["shares"]}
        self.problems |= {f"{name}: {row['problem']}" for name, row in rows.items() if row["problem"]}
        return rows

    def started(self):
        """Each program but the first ones needs room that others must give, and so does the growth of one."""
        for program in self.programs:
            program.start()
            wait_until(lambda: program.check() or "READY" in program.text(), ROUND_S,  # noqa: B023
                       f"{program.name} being ready")
        self.programs[5].await_rounds(1)
        return f"{len(self.programs)} programs are ready"

    def used(self):
        until = time.monotonic() + SECONDS_OF_USE
        while time.monotonic() < until:
            time.sleep(min(KILL_EVERY_S, max(0.0, until - time.monotonic())))
            # A daemon counts only the failures that it has seen.
            self.failed_swaps += sum(row["failed_swaps"] for row in self.shares().values())
            self.daemon.kill()
            self.daemon.start()
            for program in self.programs:
                program.check()
        return f"{self.daemon.kills} kills"

    def went_on(self):
        """Each program gets its GPUs again."""
        goals = [len(program.waits()) + ROUNDS_AFTER for program in self.programs]
        for program, goal in zip(self.programs, goals):
            program.await_rounds(goal)
        rows = self.shares()
        self.failed_swaps += sum(row["failed_swaps"] for row in rows.values())
        demand(set(rows) == {program.name for program in self.programs}, f"a program is missing: {rows}")
        demand(all(row["swaps"] > 0 for name, row in rows.items() if name.startswith("wide")), f"no swaps: {rows}")
        for program in self.programs:
            demand(program.failed_allocations() == 0, f"{program.name}: an allocation failed although others could leave")

    def result(self):
        rows = self.machine.stasis(None, "share", expect=None).json() or {"shares": []}
        return {"mib": self.mib, "gpu_mib": gpu_mib(self.mib), "seconds_of_use": SECONDS_OF_USE,
                "rounds": {program.name: len(program.waits()) for program in self.programs},
                "swaps": {row["job"]: row["swaps"] for row in rows["shares"]},
                "longest_wait_s": max((wait for program in self.programs for wait in program.waits()), default=None),
                "daemon_kills": self.daemon.kills, "failed_swaps": self.failed_swaps,
                "failed_allocations": sum(program.failed_allocations() for program in self.programs),
                "problems": sorted(self.problems),
                "failures": [row["step"] for row in self.machine.report.rows if row["result"] == "FAIL"]}

    def end(self):
        for program in self.programs:
            for words in (["kill", program.name, "-s", "KILL"], ["wait", program.name], ["delete", program.name]):
                self.machine.stasis(None, *words, expect=None)
        self.machine.stasis(None, "daemon", "drain", expect=None)


def main():
    parser = argparse.ArgumentParser(prog="long_run.sh")
    parser.add_argument("dist", metavar="DIST_DIR")
    parser.add_argument("out", metavar="OUT_DIR")
    parser.add_argument("--isolate", action="store_true", help="in namespaces of its own, which end with it")
    options = parser.parse_args()
    if options.isolate:
        os.makedirs(options.out, exist_ok=True)
        isolate.enter([options.dist, options.out, str(HERE.parents[1])])
    report = Report(options.out, BUDGET_S, "share_long_run")
    machine = Machine(options.dist, report, soft=True)
    mib = program_mib()
    report.facts["MiB of a program / a GPU"] = f"{mib} / {gpu_mib(mib)}"
    machine.env.update(SOFTGPU_DIR=str(machine.state / "gpu"), SOFTGPU_DEVICES="3", SOFTGPU_MEMORY=f"{gpu_mib(mib)}M",
                       STASIS_SHARE_MAX_WAIT_S=str(int(ROUND_S)))
    run = Run(machine, mib)
    try:
        report.step_name = "start"
        run.daemon.start()
        steps = [("started", run.started), ("used", run.used), ("went on", run.went_on)]
        for name, function in steps:
            if not any(row["result"] == "FAIL" for row in report.rows):
                report.step(name, BUDGET_S, function)
    finally:
        report.step_name = "end"
        result = run.result()
        run.end()
        for name in ("longest_wait_s", "daemon_kills", "failed_swaps", "failed_allocations"):
            report.facts[name] = result[name]
        code = report.finish()
        machine.clean()
    print(json.dumps(result), flush=True)
    (pathlib.Path(options.out) / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
