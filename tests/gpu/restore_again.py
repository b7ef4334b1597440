"""The steps of restore_again.sh."""

import argparse
import functools
import os
import pathlib
import shutil
import statistics
import sys

from fast_path import SOFT, account_text, periodic, settle
from harness import Output, Report, demand, is_alive, wait_until
from images import TOKENS, Subject, phases
from ride import Machine

AGAIN = int(os.environ.get("AGAIN", "5"))
BAR_S = 1.5
SHOWN = ["image-verify", "cpu-read", "cpu-restore", "cpu-fill", "data-load", "gpu-restore"]


class Reference:
    """The results of the undisturbed run, which repeat after TOKENS rounds."""

    def __init__(self, subject):
        self.values = None
        if SOFT:
            return
        periodic(subject.job.output, TOKENS, subject.undisturbed)
        self.values = [value for _, value in subject.job.output.rounds()][:TOKENS]

    def check(self, output):
        rounds = [(int(number), value) for number, value in output.rounds()]
        first = rounds[0][0]
        demand([n for n, _ in rounds] == list(range(first, first + len(rounds))), f"rounds are missing: {rounds[:3]}")
        if self.values is None:  # on softgpu the program compares its memory itself
            return
        wrong = [n for n, value in rounds if value != self.values[(n - 1) % TOKENS]]
        demand(not wrong, f"{len(wrong)} of {len(rounds)} results differ from the undisturbed run's")


def restores(machine, subject, builds):
    report = machine.report
    folder = pathlib.Path(os.environ.get("SHM", "/dev/shm")) / "stasis-restore-again"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    notes, times = [], {name: [] for name in builds}
    try:
        subject.start()
        reference = Reference(subject)
        subject.verb("dump", subject.name, "-d", folder, "--name", "image", rounds=0)
        wait_until(lambda: not is_alive(subject.job.pid), 20, "the end of the dumped program")
        for number in range(1, AGAIN + 1):
            for name, dist in builds.items():
                machine.dist = dist
                subject.job.output = Output(machine.log(f"{name}-{number}.out"))
                done = subject.job.restore(folder / "image")
                account = done.json()
                times[name].append(account["total_s"])
                own = phases(account)
                parts = ", ".join(f"{phase} {own[phase]:.2f}" for phase in SHOWN if phase in own)
                report.number(f"{name}, restore {number}: {parts}; total", account["total_s"], "s",
                              ("<=", BAR_S) if name == "new" and number > 1 else None)
                report.number("  the command:", done.seconds, "s")
                notes.append(account_text(account))
                subject.job.wait_rounds(8, 30)
                reference.check(subject.job.output)
                subject.job.kill()
                wait_until(lambda: not is_alive(subject.job.pid), 20, "the end of the program")
        for name, found in times.items():
            later = found[1:] or found
            report.number(f"{name}: median of all but the first", statistics.median(later), "s")
        return settle(report, "\n".join(notes))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(prog="restore_again.sh")
    parser.add_argument("dist", metavar="DIST_DIR")
    parser.add_argument("out", metavar="OUT_DIR")
    options = parser.parse_args()
    budget_s = float(os.environ.get("BUDGET_S", "230"))
    report = Report(options.out, budget_s, "restore_again")
    machine = Machine(options.dist, report, SOFT)
    builds = {"new": machine.dist}
    if os.environ.get("BASE"):
        builds = {"base": pathlib.Path(os.environ["BASE"]).resolve(), **builds}
    subject = Subject(machine, "llama" if not SOFT else "vector")
    try:
        report.step_name = "early"
        subject.begin()
        report.step("restores", budget_s - 10, functools.partial(restores, machine, subject, builds))
    finally:
        subject.kill()
        code = report.finish()
        machine.clean()
    return code


if __name__ == "__main__":
    sys.exit(main())
