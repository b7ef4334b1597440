"""The steps of deaths.sh."""

import argparse
import os
import pathlib
import subprocess
import sys

from harness import Report, demand, is_alive, run, tail, wait_until
from ride import Job, Machine

HERE = pathlib.Path(__file__).resolve().parent
SOFT = os.environ.get("GPU") == "soft"
STEPS = ("lock", "checkpoint", "restore", "unlock")


class Subject:
    def __init__(self, machine, name, command, env=None):
        self.machine, self.name, self.command, self.env = machine, name, command, env
        self.starts = 0
        self.job = None

    def start(self):
        self.starts += 1
        self.job = Job(self.machine, f"{self.name}-{self.starts}", self.command, self.env, agent=False)
        self.job.wait_ready(90)
        self.job.wait_rounds(2, 60)

    def end_of(self):
        """Describes how the program ended, according to Stasis and the kernel."""
        shown = self.machine.stasis(None, "wait", self.job.name, timeout_s=10, expect=None)
        kernel = run(["dmesg"], 10).out.splitlines()[-6:]
        return "\n".join([f"stasis wait: exit code {shown.code} {shown.out.strip()} {shown.err.strip()}",
                          tail(self.job.output.text(), 600), *kernel])


def cycle(machine, job, stopper):
    """Runs the driver's four steps one by one. With `stopper`, stops the process's threads during checkpoint and
    restore."""
    for step in STEPS:
        words = [machine.dist / "bin" / "stasis", "--json", "gpu", step, job.pid]
        if stopper and step in ("checkpoint", "restore"):
            tid = machine.stasis(None, "gpu", "restore-tid", job.pid).json()["restore_tid"]
            words = [stopper, job.pid, tid, *words]
        done = run(words, 60, machine.log(machine.report.step_name), machine.env)
        demand(done.code == 0, f"{step}: exit code {done.code}\n{tail(done.err, 600)}")
        if not is_alive(job.pid):
            return step
    return None


def deaths(subject, rounds, stopper=None):
    def body():
        ends, where = [], []
        for number in range(rounds):
            if subject.job is None or not is_alive(subject.job.pid):
                subject.start()
            died = None
            try:
                died = cycle(subject.machine, subject.job, stopper)
                if died is None:
                    subject.job.wait_rounds(2, 30)
            except Exception as error:  # noqa: BLE001 - a death shows in many ways
                died = str(error).splitlines()[0]
            if died is not None or not is_alive(subject.job.pid):
                ends.append(f"round {number + 1}: after {died}: {subject.end_of()}")
                where.append(str(died))
                subject.job.kill()
                subject.job = None
        subject.machine.report.number(f"deaths in {rounds} rounds", len(ends), "", ("<=", 0))
        demand(not ends, f"{len(ends)} of {rounds}:\n" + "\n".join(ends))
        return f"{rounds} rounds"
    return body


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("dist")
    parser.add_argument("out")
    parser.add_argument("rounds", nargs="?", type=int, default=20)
    options = parser.parse_args()
    report = Report(options.out, int(os.environ.get("BUDGET_S", "300")), "deaths")
    machine = Machine(options.dist, report, SOFT)
    stopper = machine.state / "stop_threads"
    built = subprocess.run(["gcc", "-O2", "-o", stopper, HERE / "stop_threads.c"], check=False)
    report.facts["command"] = " ".join(sys.argv)
    report.facts["driver"] = machine.stasis(None, "version", expect=None).out.strip()

    spinner = Subject(machine, "spinner", [machine.workload("spinner"), "--interval", 5])
    jax = Subject(machine, "jax", [sys.executable, HERE / "jax_loop.py", "--memory", 4],
                  {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"})
    limit = report.left_s()
    for subject in (spinner, jax):
        if SOFT and subject is jax:
            continue
        report.step(f"{subject.name} alone", limit, deaths(subject, options.rounds))
        if built.returncode == 0:
            report.step(f"{subject.name} with its threads stopped", limit,
                        deaths(subject, options.rounds, stopper))
        if subject.job:
            subject.job.kill()
    wait_until(lambda: all(s.job is None or not is_alive(s.job.pid) for s in (spinner, jax)), 20, "the end")
    machine.clean()
    sys.exit(report.finish())


if __name__ == "__main__":
    main()
