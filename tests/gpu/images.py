"""The steps of images.sh; see there."""

import argparse
import functools
import os
import pathlib
import shutil
import sys
import time

from fast_path import GIB, SOFT, Program, account_text, periodic, settle, start_vector
from harness import Report, demand, is_alive, run, wait_until
from ride import Machine, sequence_is_whole

LAYERS = os.environ.get("LAYERS", "32")
CACHE = os.environ.get("CACHE_GIB", "20")
TOKENS = 48


def phases(account):
    return {phase["name"]: phase["seconds"] for phase in account["phases"]}


class Subject:
    """The program, and what it says of itself."""

    def __init__(self, machine, name, agent=True):
        self.machine, self.name = machine, name
        self.program = None if SOFT else Program(
            machine, name, "torch_llama.py", "--layers", LAYERS, "--cache", CACHE, "--tokens", str(TOKENS),
            agent=agent)
        self.agent = agent
        self.job = None
        self.undisturbed = 0

    def begin(self):
        if self.program:
            self.program.begin()

    def start(self):
        self.job = self.program.go(90) if self.program else start_vector(self.machine, self.name, "64M")
        self.job.wait_rounds(3 if SOFT else 2 * TOKENS + 1, 90)
        self.undisturbed = self.job.output.count()

    def verb(self, *words, rounds=8):
        """An account; and the program goes on afterwards, unless it was to end."""
        account = self.job.verb(*words, timeout_s=150).json()
        if rounds:
            self.job.wait_rounds(rounds, 30)
        return account

    def end(self):
        if not SOFT:
            self.job.wait_rounds(TOKENS, 60)
        self.job.finish()
        if SOFT:
            sequence_is_whole(self.job.output)
            return "the rounds are whole"
        return periodic(self.job.output, TOKENS, self.undisturbed)

    def kill(self):
        if self.job:
            self.job.kill()
        if self.program:
            self.program.kill()


def disk(report, folder):
    """Bytes a second, written and read directly in pieces of 64 MiB; random bytes."""
    path = folder / "disk.test"
    count = 4 if SOFT else 48
    block = pathlib.Path("/dev/shm/images.random")
    block.write_bytes(os.urandom(64 << 20))
    speeds = []
    began = time.monotonic()
    for n in range(count):
        demand(run(["dd", f"if={block}", f"of={path}", "bs=64M", "oflag=direct", "conv=notrunc",
                    f"seek={n}", "status=none"], 60).code == 0, "dd failed")
    speeds.append(count * (64 << 20) / (time.monotonic() - began))
    began = time.monotonic()
    demand(run(["dd", f"if={path}", "of=/dev/null", "bs=64M", "iflag=direct", "status=none"], 60).code == 0,
           "dd failed")
    speeds.append(count * (64 << 20) / (time.monotonic() - began))
    path.unlink()
    block.unlink()
    report.number("disk, written directly:", speeds[0] / 1e9, "GB/s")
    report.number("disk, read directly:", speeds[1] / 1e9, "GB/s")
    return speeds


def image_bytes(report, what, account):
    stored = account["stored"]
    report.number(f"{what}: image", account["image_bytes"] / GIB, "GiB")
    report.number(f"{what}: GPU data in it / new / zero",
                  stored["gpu_bytes"] / GIB, f"GiB / {stored['added_bytes'] / GIB:.3f} / "
                  f"{stored['zero_bytes'] / GIB:.3f} GiB")


def shown(report, what, account):
    report.number(f"{what}: total", account["total_s"], "s")
    if account.get("pause_s"):
        report.number(f"{what}: pause", account["pause_s"], "s")
    return f"{what}: {account_text(account)}"


def incremental(machine, subject):
    report = machine.report
    notes = []
    subject.start()
    for n in range(4):
        down = subject.verb("suspend", subject.name, rounds=0)
        up = subject.verb("resume", subject.name)
        what = "first" if n == 0 else f"number {n + 1}"
        report.number(f"suspend, {what}:", down["total_s"], "s")
        report.number("… copied / unchanged / zero", down["saved"]["copied_bytes"] / GIB,
                      f"GiB / {down['saved']['unchanged_bytes'] / GIB:.3f} / {down['saved']['zero_bytes'] / GIB:.3f} GiB")
        report.number(f"resume, {what}:", up["total_s"], "s")
        notes.append(account_text(down))
    return settle(report, "\n".join(notes))


def dumps(machine, subject, speeds):
    report = machine.report
    notes = []
    name, folder = subject.name, machine.images
    first = subject.verb("dump", name, "-d", folder, "--name", "one", "--leave-running")
    notes.append(shown(report, "first dump, left running", first))
    image_bytes(report, "first dump", first)
    unique = first["stored"]["added_bytes"] or first["image_bytes"]
    report.number("first dump / (new bytes / disk):", first["total_s"] / (unique / speeds[0]), "", ("<=", 1.15))
    report.number("pause of it", first["pause_s"], "s", ("<=", 2.0))
    second = subject.verb("dump", name, "-d", folder, "--name", "two", "--leave-running")
    notes.append(shown(report, "second dump, left running", second))
    image_bytes(report, "second dump", second)
    report.number("second dump:", second["total_s"], "s", ("<=", 2.5))
    third = subject.verb("dump", name, "-d", folder, "--name", "three", rounds=0)
    notes.append(shown(report, "third dump", third))
    wait_until(lambda: not is_alive(subject.job.pid), 20, "the end of the dumped program")
    back = subject.job.restore(folder / "three").json()
    notes.append(shown(report, "restore, as the page cache is", back))
    report.number("restore:", back["total_s"], "s", ("<=", 2.5))
    subject.job.wait_rounds(8, 30)
    return settle(report, "\n".join(notes))


def to_tmpfs(machine, subject):
    report = machine.report
    folder = pathlib.Path(os.environ.get("SHM", "/dev/shm")) / "stasis-images"
    shutil.rmtree(machine.images, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    try:
        account = subject.verb("dump", subject.name, "-d", folder, "--name", "memory", "--leave-running")
        note = shown(report, "dump to tmpfs", account)
        own = phases(account)
        longest = max(own.get("data-write", 0), own.get("cpu-dump", 0), own.get("data-save", 0))
        report.number("… / its longest part", account["total_s"] / longest, "", ("<=", 1.2))
        return settle(report, note + "\n" + subject.end())
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def plain(machine):
    """The driver's checkpoint and CRIU, one after the other."""
    subject = Subject(machine, "plain", agent=False)
    try:
        subject.start()
        account = subject.verb("dump", subject.name, "-d", machine.images, "--name", "plain", rounds=0)
        return shown(machine.report, "the plain way", account)
    finally:
        subject.kill()
        shutil.rmtree(machine.images, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(prog="images.sh")
    parser.add_argument("dist", metavar="DIST_DIR")
    parser.add_argument("out", metavar="OUT_DIR")
    options = parser.parse_args()
    report = Report(options.out, float(os.environ.get("BUDGET_S", "350")), "images")
    machine = Machine(options.dist, report, SOFT)
    subject = Subject(machine, "llama" if not SOFT else "vector")
    speeds = [1.0, 1.0]

    def measure_disk():
        speeds[:] = disk(report, machine.images)

    try:
        report.step_name = "early"
        subject.begin()
        report.step("disk", 60, measure_disk)
        report.step("suspends", 150, functools.partial(incremental, machine, subject))
        report.step("dumps", 200, lambda: dumps(machine, subject, speeds))
        report.step("tmpfs", 100, functools.partial(to_tmpfs, machine, subject))
        if os.environ.get("PLAIN") == "yes":
            report.step("plain", 200, functools.partial(plain, machine))
    finally:
        subject.kill()
        code = report.finish()
        machine.clean()
    return code


if __name__ == "__main__":
    sys.exit(main())
