"""The steps of restore_fast.sh."""

import functools
import os
import pathlib
import shutil
import sys

from fast_path import SOFT, start_vector
from harness import Output, Report, demand, is_alive, tail, wait_until
from images import span
from ride import Machine

MEMORY = os.environ.get("MEMORY", "64M" if SOFT else "16G")
ROUNDS = int(os.environ.get("ROUNDS", "3"))
STORES = os.environ.get("STORES", "disk shm").split()
WAYS = ("direct", "arena")
NOTE = "loaded through arenas"


class Subject:
    """The program, its images, and the speed of PCIe."""

    def __init__(self, machine):
        self.machine, self.report = machine, machine.report
        self.job = None
        self.wire = 0.0  # bytes per second
        self.folders = {"disk": machine.images, "shm": pathlib.Path("/dev/shm/stasis-restore-fast")}

    def measure_wire(self):
        """`stasis bench` copies 1 GiB of pinned memory five times and reports the best."""
        size = "64MiB" if SOFT else "2GiB"
        done = self.machine.stasis(None, "bench", "--size", size, "--rounds", "1", "--driver-rounds", "0",
                                   timeout_s=100)
        self.wire = done.json()["wire"]["to_gpu_bytes_per_s"]
        self.report.number("PCIe to the GPU:", self.wire / 1e9, "GB/s")

    def dump(self, store):
        folder = self.folders[store]
        folder.mkdir(parents=True, exist_ok=True)
        if self.job is None:
            self.job = start_vector(self.machine, f"vector-{store}", MEMORY)
            self.job.wait_rounds(3, 60)
        account = self.job.verb("dump", self.job.name, "-d", folder, "--name", store, timeout_s=120).json()
        wait_until(lambda: not is_alive(self.job.pid), 20, "the end of the dumped program")
        self.report.number("GPU data:", account["shared_bytes"] / 1e9, "GB")
        return self.read(store)

    def read(self, store):
        """Brings the image into the page cache."""
        for path in (self.folders[store] / store).rglob("*"):
            if path.is_file():
                with open(path, "rb", buffering=0) as file:
                    while file.read(16 << 20):
                        pass
        return ""

    def restore(self, store, way, number):
        self.machine.env["STASIS_RESTORE_DATA"] = way
        self.job.output = Output(self.machine.log(f"{store}-{way}-{number}.out"))
        done = self.job.restore(self.folders[store] / store)
        account = done.json()
        demand(NOTE not in str(account["notes"]), f"no direct load: {account['notes']}")
        loaded = next(p for p in account["phases"] if p["name"] == "data-load")
        read = next(p for p in account["phases"] if p["name"] == "data-read")
        demand((read["bytes"] == 0) == (way == "direct"), f"{way}: data-read has {read['bytes']} bytes")
        seconds = loaded["seconds"] if way == "direct" else span(account, ["data-read", "data-load"])
        rate = loaded["bytes"] / seconds
        what = f"{way} {number}: "
        self.report.number(what + "GPU data:", rate / 1e9, "GB/s")
        bar = (">=", 0.85) if way == "direct" and number > 1 and not SOFT else None
        self.report.number(what + "of PCIe:", rate / self.wire, "", bar)
        self.report.number(what + "load-room, data-read and data-load together:",
                           span(account, ["load-room", "data-read", "data-load"]), "s")
        self.report.number(what + "whole restore:", account["total_s"], "s")
        self.report.number(what + "command:", done.seconds, "s")
        self.job.wait_rounds(3, 60)

    def both(self, store):
        for number in range(1, ROUNDS + 1):
            for way in WAYS:
                self.restore(store, way, number)
                # The program compares all of its memory before it prints EXIT-SUCCESS.
                self.job.finish()
        return ""

    def damage(self, store):
        """One changed byte in the middle of a pack."""
        self.machine.env["STASIS_RESTORE_DATA"] = "direct"
        image = self.folders[store] / store
        pack = max((image / "packs").iterdir(), key=lambda path: path.stat().st_size)
        at = pack.stat().st_size // 2 + 77

        def flip():
            with open(pack, "r+b", buffering=0) as file:
                byte = os.pread(file.fileno(), 1, at)[0]
                os.pwrite(file.fileno(), bytes([byte ^ 1]), at)

        flip()
        done = self.job.verb("restore", image, expect=1)
        flip()
        demand(pack.name in done.err and "is damaged" in done.err, f"not found: {tail(done.err, 800)}")
        demand(not is_alive(self.job.pid), "the program runs")
        return done.err.strip().splitlines()[0]

    def next_dump(self, store):
        """A dump after a direct restore finds the blocks of the image."""
        self.machine.env["STASIS_RESTORE_DATA"] = "direct"
        self.job.output = Output(self.machine.log(f"{store}-next.out"))
        self.job.restore(self.folders[store] / store)
        self.job.wait_rounds(3, 60)
        account = self.job.verb("dump", self.job.name, "-d", self.folders[store], "--name", "next", "--leave-running",
                                timeout_s=120).json()
        self.report.number("GPU data written by the next dump:", account["stored"]["gpu_bytes"] / 1e6, "MB")
        self.job.wait_rounds(3, 60)
        self.job.finish()
        shutil.rmtree(self.folders[store] / "next", ignore_errors=True)
        return ""


def main():
    dist, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    report = Report(out, float(os.environ.get("BUDGET_S", "300")), "restore_fast")
    machine = Machine(dist, report, SOFT)
    subject = Subject(machine)
    try:
        report.step("wire", 110, subject.measure_wire)
        for store in STORES:
            report.step(f"{store}: dump", 150, functools.partial(subject.dump, store))
            report.step(f"{store}: restores", 120, functools.partial(subject.both, store))
            report.step(f"{store}: a damaged byte", 30, functools.partial(subject.damage, store))
            report.step(f"{store}: the next dump", 60, functools.partial(subject.next_dump, store))
            shutil.rmtree(subject.folders[store] / store, ignore_errors=True)
            subject.job = None
    finally:
        if subject.job is not None:
            subject.job.kill()
        shutil.rmtree(subject.folders["shm"], ignore_errors=True)
    code = report.finish()
    machine.clean()
    return code


if __name__ == "__main__":
    sys.exit(main())
