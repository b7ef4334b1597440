"""The steps of repository.sh."""

import argparse
import concurrent.futures
import functools
import os
import pathlib
import shutil
import sys
import time

from harness import Output, Report, demand, tail, wait_until
from ride import Machine

SOFT = os.environ.get("GPU") == "soft"
SIZE = os.environ.get("SIZE", "256M" if SOFT else "16G")
PLACE = pathlib.Path(os.environ.get("PLACE", "/dev/shm")) / "stasis-repository"
GIB = 1 << 30


class Bench:
    def __init__(self, machine):
        self.machine = machine
        self.output = None
        for name in ("store", "encrypted", "plain", "copy"):
            (PLACE / name).mkdir(parents=True, exist_ok=True)
        machine.stasis(None, "key", "create")
        machine.stasis(None, "repo", "add", "encrypted", PLACE / "encrypted", "--trust")
        machine.stasis(None, "repo", "add", "plain", PLACE / "plain", "--plain", "--trust")

    def rate(self, what, size, seconds):
        self.machine.report.number(f"{what}: GiB/s", size / GIB / seconds, "GiB/s")
        return f"{what}: {size / GIB:.2f} GiB in {seconds:.2f} s, {size / GIB / seconds:.2f} GiB/s"

    def start(self):
        started = self.machine.stasis(None, "run", "--job", "one", "--", self.machine.workload("vector"), "--memory",
                                      SIZE, "--interval", "20").json()
        self.output = Output(started["log"])
        wait_until(lambda: self.output.count() > 2, 120, f"its first rounds:\n{tail(self.output.text(), 800)}")
        return "it runs"

    def is_right(self):
        before = self.output.count()
        wait_until(lambda: self.output.count() > before + 1, 60, "two rounds")
        demand(self.output.failure() is None, f"its memory is wrong: {self.output.failure()}")

    def dump(self):
        done = self.machine.stasis(None, "dump", "one", "-d", PLACE / "store", "--name", "image").json()
        return f"dump to {PLACE}: {done['total_s']:.2f} s"

    def push(self, repository):
        done = self.machine.stasis(None, "image", "push", PLACE / "store" / "image", "-R", repository).json()
        return self.rate(f"push, {repository}", done["moved_bytes"], done["seconds"])

    def copy(self):
        """Measures the machine's own speed: threads that copy whole objects, and threads that only read them."""
        files = [p for p in (PLACE / "encrypted" / "packs").rglob("*") if p.is_file()]
        size = sum(p.stat().st_size for p in files)
        lines = []
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            began = time.monotonic()
            list(pool.map(lambda f: shutil.copyfile(f[1], PLACE / "copy" / str(f[0])), enumerate(files)))
            lines.append(self.rate("copy of the packs by threads", size, time.monotonic() - began))
            began = time.monotonic()
            list(pool.map(self.read, files))
            lines.append(self.rate("read of the packs by threads", size, time.monotonic() - began))
        shutil.rmtree(PLACE / "copy")
        return "\n".join(lines)

    @staticmethod
    def read(path):
        buffer = bytearray(16 << 20)
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass

    def restore(self, source, what):
        done = self.machine.stasis(None, "restore", source)
        account = done.json()
        self.is_right()
        phases = {phase["name"]: phase for phase in account["phases"]}
        read = phases["data-read"]
        self.machine.report.number(f"restore, {what}: command", done.seconds, "s")
        text = (f"restore, {what}: {done.seconds:.2f} s by the clock, operation {account['total_s']:.2f} s; "
                f"data-read {read['seconds']:.2f} s, {read['bytes_per_s'] / GIB:.2f} GiB/s")
        self.machine.stasis(None, "kill", "one", "-s", "KILL")
        self.machine.stasis(None, "wait", "one", expect=None)
        return text


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("dist")
    parser.add_argument("out")
    options = parser.parse_args()
    report = Report(options.out, float(os.environ.get("BUDGET_S", "240")), "repository")
    machine = Machine(options.dist, report, SOFT)
    shutil.rmtree(PLACE, ignore_errors=True)
    try:
        bench = Bench(machine)
        report.step("start", 120, bench.start)
        report.step("dump", 60, bench.dump)
        for repository in ("encrypted", "plain"):
            report.step(f"push, {repository}", 60, functools.partial(bench.push, repository))
        report.step("copy", 60, bench.copy)
        for _ in range(2):
            report.step("restore, local", 60, functools.partial(bench.restore, PLACE / "store" / "image", "local"))
            for repository in ("encrypted", "plain"):
                report.step(f"restore, {repository}", 60,
                            functools.partial(bench.restore, f"{repository}/image", repository))
        machine.stasis(None, "kill", "one", "-s", "KILL", expect=None)
        machine.clean()
    finally:
        shutil.rmtree(PLACE, ignore_errors=True)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
