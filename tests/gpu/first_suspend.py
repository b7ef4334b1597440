"""The steps of first_suspend.sh."""

import argparse
import functools
import os
import pathlib
import signal
import statistics
import sys

from fast_path import SOFT, start_vector
from harness import Report, demand, wait_until
from ride import Job, Machine

HERE = pathlib.Path(__file__).resolve().parent
ROUNDS = int(os.environ.get("ROUNDS", "3"))
READY_S = 120
# arena.reserve of the daemon and of `run`, and the bar over a warm suspend.
WAYS = {
    "without reserve": ("off", None),
    "with reserve": ("auto", 1.3),
    "with reserve, mover ended": ("auto", None),
}


def helpers(machine, name):
    """Returns the pids of this program of the tarball."""
    pids = []
    for path in pathlib.Path("/proc").glob("[0-9]*/exe"):
        try:
            if path.readlink() == machine.dist / "libexec" / name:
                pids.append(int(path.parent.name))
        except OSError:
            pass
    return pids


class Measurement:
    def __init__(self, machine, gib):
        self.machine, self.report, self.gib = machine, machine.report, gib
        self.seconds = {}  # lists by (way, "first" or "warm")

    def start(self, name):
        if SOFT:
            job = start_vector(self.machine, name, "64M")
        else:
            job = Job(self.machine, name, [sys.executable, HERE / "torch_random.py", "--gigabytes", self.gib])
        job.wait_ready(120)
        return job

    def ready_bytes(self):
        arenas = self.machine.stasis(None, "arena", "ls").json()["arenas"]
        return sum(arena["size_bytes"] for arena in arenas if arena["state"] == "ready")

    def await_reserve(self, job, ended):
        """Waits until memory is ready, and if `ended` ends the mover."""
        least = (60 << 20) if SOFT else int(0.99 * (self.gib << 30))
        wait_until(lambda: self.ready_bytes() >= least and not helpers(self.machine, "stasis-worker"),
                   READY_S, "host memory being ready")
        meanwhile = job.output.count()
        if ended:
            for pid in helpers(self.machine, "stasis-mover"):
                os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not helpers(self.machine, "stasis-mover"), 20, "the end of the mover")
        return meanwhile

    def rounds(self, job, what, first, last):
        """Reports how long the rounds of the program were."""
        seconds = [] if SOFT else [float(text) for _, text in job.output.rounds()[first:last]]
        if not seconds:
            return
        self.report.number(f"rounds of the program {what}, median:", statistics.median(seconds), "s")
        self.report.number("  longest:", max(seconds), "s")

    def suspend(self, job, way, which):
        done = job.verb("suspend", job.name, timeout_s=120)
        account = done.json()
        self.seconds.setdefault((way, which), []).append(account["total_s"])
        self.report.number(f"{which} suspend:", account["total_s"], "s")
        self.report.number("  the command:", done.seconds, "s")
        self.report.number("  of it host memory that was not ready:", account["cold_bytes"] / 2**30, "GiB")
        job.verb("resume", job.name, timeout_s=120)
        job.wait_rounds(2, 60)

    def once(self, way, number):
        reserve, _ = WAYS[way]
        self.machine.env.update(STASIS_ARENA_RESERVE=reserve, STASIS_HELPER_IDLE_S="600")
        self.machine.stasis(None, "arena", "free")
        self.machine.stasis(None, "daemon", "start")
        job = None
        try:
            job = self.start(f"random-{number}-{list(WAYS).index(way)}")
            began = job.output.count()
            job.wait_rounds(3, 60)
            if reserve == "auto":
                ready = self.await_reserve(job, "ended" in way)
                self.rounds(job, "while memory was made ready", began, ready)
                before = job.output.count()
                job.wait_rounds(5, 60)
                self.rounds(job, "afterwards", before, None)
            self.suspend(job, way, "first")
            self.suspend(job, way, "warm")
            # The program compares all of its memory before it prints EXIT-SUCCESS.
            job.finish()
        finally:
            if job is not None:
                job.kill()
            self.machine.stasis(None, "daemon", "drain", expect=None)
            self.machine.stasis(None, "arena", "free", expect=None)
        return ""

    def table(self):
        warm = [second for (_, which), seconds in self.seconds.items() if which == "warm" for second in seconds]
        demand(warm, "nothing was measured")
        usual = statistics.median(warm)
        lines = [f"{'':28} {'first suspends':24} {'median':>8} {'/ warm':>8}",
                 f"{'warm, of all':28} {min(warm):.3f} to {max(warm):.3f} s{'':9} {usual:6.3f} s {1:8.2f}"]
        for way, (_, bar) in WAYS.items():
            first = self.seconds.get((way, "first"), [])
            if not first:
                continue
            median = statistics.median(first)
            shown = ", ".join(f"{second:.3f}" for second in first) + " s"
            lines.append(f"{way:28} {shown:24} {median:6.3f} s {median / usual:8.2f}")
            self.report.number(f"first suspend {way} / warm:", median / usual, "",
                               ("<=", bar) if bar and not SOFT else None)
        print("\n" + "\n".join(lines), flush=True)
        return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(prog="first_suspend.sh")
    parser.add_argument("dist", metavar="DIST_DIR")
    parser.add_argument("out", metavar="OUT_DIR")
    parser.add_argument("gib", metavar="GIB", nargs="?", type=int, default=36)
    options = parser.parse_args()
    report = Report(options.out, float(os.environ.get("BUDGET_S", "540")), "first_suspend")
    machine = Machine(options.dist, report, SOFT)
    # Movers stay between commands only with the default driver library, which LD_LIBRARY_PATH gives too.
    machine.env.pop("STASIS_CUDA_LIBRARY", None)
    measurement = Measurement(machine, options.gib)
    try:
        for number in range(1, ROUNDS + 1):
            for way in WAYS:
                report.step(f"{way} {number}", 150, functools.partial(measurement.once, way, number))
        report.step("table", 10, measurement.table)
    finally:
        machine.stasis(None, "daemon", "drain", expect=None)
    code = report.finish()
    machine.clean()
    return code


if __name__ == "__main__":
    sys.exit(main())
