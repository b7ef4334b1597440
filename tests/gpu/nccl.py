"""The steps of nccl.sh."""

import argparse
import functools
import os
import pathlib
import re
import sys
import time

from harness import Report, demand, is_alive, run, wait_until
from ride import Job, Machine, descendants, device_files, sequence_is_whole

RANKS = pathlib.Path(__file__).resolve().parent / "nccl_ranks.py"

# The settings listed in docs/nccl.md, and the expected refusals.
SETTINGS = {
    "defaults": ({}, [], None),
    # Like a model split over GPUs: many collectives are in flight when the gates close.
    "ahead": ({}, ["--ahead", "50", "--megabytes", "4", "--interval", "0"], None),
    "legacy-ipc": ({"NCCL_CUMEM_ENABLE": "0"}, [], None),
    "host-files": ({"NCCL_P2P_DISABLE": "1", "NCCL_CUMEM_HOST_ENABLE": "0"}, [], None),
    "plain-driver": ({"NCCL_P2P_DISABLE": "1", "NCCL_CUMEM_ENABLE": "0"}, [], None),
    "host-handles": ({"NCCL_P2P_DISABLE": "1"}, [], "shares GPU memory with another process"),
}


class Ranks:
    def __init__(self, machine, name, setting=None, command=None):
        """`setting`: like a value of SETTINGS; `command`: another program in the place of RANKS."""
        self.machine, self.name = machine, name
        self.settings, words, self.refusal = setting or SETTINGS[name]
        self.command = command or [sys.executable, RANKS, *words]
        self.job = None

    def begin(self):
        debug = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,P2P,SHM,GRAPH"}
        self.job = Job(self.machine, self.name, self.command, env={**self.settings, **debug})

    def pids(self):
        return [self.job.pid, *descendants(self.job.pid)]

    def gpu_files(self):
        """Returns the GPU files that any rank holds."""
        return [] if self.machine.soft else [file for pid in self.pids() for file in device_files(pid)]

    def transports(self):
        """Returns the transports that NCCL reports."""
        return ", ".join(sorted(set(re.findall(r" via (\S+)", self.job.output.text())))) or "not said"

    def guarded(self, function):
        try:
            return function()
        except BaseException:
            if self.job:
                for pid in self.pids():
                    run(["sh", "-c", f"for t in /proc/{pid}/task/*; do echo $t $(cat $t/comm $t/wchan); done"], 5,
                        self.machine.log(self.machine.report.step_name))
                self.job.kill()
            time.sleep(0.5)
            self.machine.stasis(None, "recover", timeout_s=30, expect=None)
            raise

    def suspend(self, times=3):
        """The collectives after each suspend must be right, otherwise the program prints FAILED."""
        job, report = self.job, self.machine.report
        job.wait_ready(120)
        job.wait_rounds(5, 60)
        if self.refusal:
            done = job.verb("suspend", self.name, expect=None)
            demand(done.code == 5 and re.search(self.refusal, done.err), f"exit code {done.code}: {done.err}")
            job.wait_rounds(5, 60)
            job.finish()
            return f"{self.transports()}; refused: {done.err.splitlines()[0]}"
        pairs = []
        for _ in range(times):
            down = job.verb("suspend", self.name).json()
            held = self.gpu_files()
            demand(not held, f"suspended, but it still holds {held}")
            before = job.output.count()
            time.sleep(0.3)
            demand(job.output.count() <= before + 1, "it goes on although it is suspended")
            up = job.verb("resume", self.name).json()
            job.wait_rounds(5, 60)
            pairs.append((down, up))
        for what, accounts in [("suspend", [down for down, _ in pairs]), ("resume", [up for _, up in pairs])]:
            report.number(f"{what}, last of {times}:", accounts[-1]["total_s"], "s")
        gates = [phase["seconds"] for down, _ in pairs for phase in down["phases"] if phase["name"] == "gate-close"]
        report.number(f"the gates closed in, worst of {times}:", max(gates), "s")
        report.number("by the data plane:", pairs[-1][0]["shared_bytes"] / 2**20, "MiB")
        report.number("of device memory:", pairs[-1][0]["device_bytes"] / 2**20, "MiB")
        return self.transports()

    def dump(self):
        job, image = self.job, self.machine.images / self.name
        job.verb("dump", self.name, "-d", self.machine.images, "--name", self.name, "--tcp", "keep")
        wait_until(lambda: not is_alive(job.pid), 20, "the end of the dumped program")
        job.verb("restore", image, "--log", job.output.path, "--tcp", "keep")
        job.wait_rounds(5, 60)
        job.verb("suspend", self.name)
        job.verb("resume", self.name)
        job.wait_rounds(5, 60)
        job.finish()
        sequence_is_whole(job.output)
        return f"{job.output.count()} rounds, all right"


def neighbours(machine):
    """Two jobs on the same two GPUs: an operation on one does not affect the other."""
    left, right = [Ranks(machine, "defaults") for _ in range(2)]
    left.name, right.name = "left", "right"
    try:
        for ranks in (left, right):
            ranks.begin()
        for ranks in (left, right):
            ranks.job.wait_ready(120)
        for number in range(3):
            for what in ("suspend", "resume"):
                if what == "suspend":
                    left.job.wait_rounds(3, 30)
                # Without this setting, a suspend beside another NCCL job is refused.
                machine.env["STASIS_TRY_NCCL"] = "1"
                left.job.verb(what, left.name)
                del machine.env["STASIS_TRY_NCCL"]
                print(f"neighbours: {what} {number}", flush=True)
                right.job.wait_rounds(20, 60)
        for ranks in (left, right):
            ranks.job.finish()
            sequence_is_whole(ranks.job.output)
        return f"{right.job.output.count()} sums of the neighbour, all right"
    finally:
        for ranks in (left, right):
            if ranks.job:
                ranks.job.kill()
        machine.stasis(None, "recover", timeout_s=30, expect=None)


def main():
    parser = argparse.ArgumentParser(prog="nccl.sh")
    parser.add_argument("dist", metavar="DIST_DIR")
    parser.add_argument("out", metavar="OUT_DIR")
    parser.add_argument("names", metavar="SETTING", nargs="*")
    options = parser.parse_args()
    report = Report(options.out, float(os.environ.get("BUDGET_S", "400")), "nccl")
    machine = Machine(options.dist, report, False)
    all_ranks = [Ranks(machine, name) for name in options.names or SETTINGS if name != "neighbours"]
    try:
        # One after the other; several on the same GPUs are a separate step.
        for ranks in all_ranks:
            report.step(f"{ranks.name}: start", 30, ranks.begin)
            report.step(f"{ranks.name}: suspend", 150, functools.partial(ranks.guarded, ranks.suspend))
            if not ranks.refusal:
                report.step(f"{ranks.name}: dump", 100, functools.partial(ranks.guarded, ranks.dump))
        if not options.names or "neighbours" in options.names:
            report.step("neighbours", 120, functools.partial(neighbours, machine))
    finally:
        for ranks in all_ranks:
            if ranks.job:
                ranks.job.kill()
        code = report.finish()
        machine.clean()
    return code


if __name__ == "__main__":
    sys.exit(main())
