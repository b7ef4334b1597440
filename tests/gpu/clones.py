"""The steps of clones.sh."""

import functools
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import time

from fast_path import SOFT, start_vector
from harness import Output, Report, demand, is_alive, tail, wait_until
from ride import Job, Machine, descendants

HERE = pathlib.Path(__file__).resolve().parent
CLONES = int(os.environ.get("CLONES", "4"))
ROUNDS = int(os.environ.get("ROUNDS", "1" if SOFT else "3"))
IMAGE = "server"
GIB = 1 << 30
LAYERS, MODEL_GIB = 8, 5  # bfloat16
ANSWER_S = 120
WARM_UP = 1  # rounds that do not count: in the first one, the driver and movers start


def start(machine, gib):
    if SOFT:
        return start_vector(machine, "server", "64M")
    job = Job(machine, "server", [sys.executable, HERE / "torch_llama.py", "--layers", LAYERS,
                                  "--cache", max(1, gib - MODEL_GIB)])
    job.wait_ready(120)
    return job


class Clone:
    """One restore of the image, as a job with its own name and log."""

    def __init__(self, machine, name):
        self.machine, self.name = machine, name
        self.output = Output(machine.log(f"{name}.out"))
        self.err = machine.log(f"{name}.err")
        self.pid, self.seconds, self.command_s, self.account = 0, None, None, None
        self.began = time.monotonic()
        with open(self.err, "wb") as err:
            self.command = subprocess.Popen(
                [machine.dist / "bin" / "stasis", "--json", "restore", machine.images / IMAGE, "--new-pidns",
                 "--job", name, "--log", self.output.path],
                env=machine.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err, start_new_session=True)

    def poll(self):
        """Returns whether the command has ended and the program has answered."""
        if self.command_s is None and self.command.poll() is not None:
            self.command_s = time.monotonic() - self.began
            text = self.command.stdout.read()
            demand(self.command.returncode == 0,
                   f"{self.name}: exit code {self.command.returncode}\n{tail(self.err.read_text(), 800)}")
            self.account = json.loads(text)
            self.pid = self.account["pid"]
        if self.seconds is None and self.output.count() > 0:
            self.seconds = time.monotonic() - self.began
        return self.seconds is not None and self.command_s is not None

    def pss_bytes(self):
        total = 0
        for pid in [self.pid, *descendants(self.pid)]:
            text = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
            total += 1024 * int(re.search(r"^Pss:\s+(\d+) kB", text, re.M).group(1))
        return total

    def finish(self):
        """The program compares all of its memory before it prints EXIT-SUCCESS."""
        os.kill(self.pid, signal.SIGTERM)
        wait_until(lambda: not is_alive(self.pid), 120, f"the end of {self.name}")
        wait_until(lambda: self.output.has("EXIT-SUCCESS") or self.output.failure(), 10, f"the verdict of {self.name}")
        demand(self.output.has("EXIT-SUCCESS"), f"{self.name}:\n{tail(self.output.text(), 800)}")
        self.machine.stasis(None, "wait", self.name, expect=None)
        self.machine.stasis(None, "delete", self.name)

    def kill(self):
        if self.command.poll() is None:
            self.command.wait()
        if self.pid and is_alive(self.pid):
            os.kill(self.pid, signal.SIGKILL)


def meminfo():
    text = pathlib.Path("/proc/meminfo").read_text()
    return {name: 1024 * int(kb) for name, kb in re.findall(r"^(\w+):\s+(\d+) kB", text, re.M)}


class Subject:
    def __init__(self, machine, gib):
        self.machine, self.report, self.gib = machine, machine.report, gib
        self.job, self.clones, self.number = None, [], 0
        self.times = {}    # number of clones -> seconds until all answer, one for each round
        self.memory = {}   # number of clones -> bytes of host memory, likewise

    def dump(self):
        self.job = start(self.machine, self.gib)
        self.job.wait_rounds(3, 60)
        account = self.job.verb("dump", "server", "-d", self.machine.images, "--name", IMAGE, timeout_s=180).json()
        wait_until(lambda: not is_alive(self.job.pid), 30, "the end of the dumped program")
        self.report.number("GPU data:", account["device_bytes"] / GIB, "GiB")
        self.report.number("image:", account["image_bytes"] / GIB, "GiB")
        for path in (self.machine.images / IMAGE).rglob("*"):  # brings it into the page cache
            if path.is_file():
                with open(path, "rb", buffering=0) as file:
                    while file.read(16 << 20):
                        pass
        return ""

    def disk_bytes(self):
        files = [path.lstat() for path in self.machine.images.rglob("*") if path.is_file()]
        return sum({(s.st_dev, s.st_ino): s.st_blocks * 512 for s in files}.values())

    def arena_bytes(self):
        return sum(arena["size_bytes"] for arena in self.machine.stasis(None, "arena", "ls").json()["arenas"])

    def restore(self, count, number):
        """Restores `count` clones at the same time, waits until all have answered, and ends them."""
        before, disk = meminfo(), self.disk_bytes()
        self.clones = [Clone(self.machine, f"clone-{count}-{number}-{i}") for i in range(count)]
        wait_until(lambda: all([clone.poll() for clone in self.clones]), ANSWER_S, "an answer of every clone")
        after = meminfo()
        pss = [clone.pss_bytes() for clone in self.clones]
        cached = max(0, after["Cached"] - before["Cached"])  # includes what is in tmpfs
        arenas = self.arena_bytes()
        grown = self.disk_bytes() - disk
        demand(grown < 1 << 20, f"the store has grown by {grown} bytes")
        seconds = sorted(clone.seconds for clone in self.clones)
        self.times.setdefault(count, []).append(seconds[-1])
        self.memory.setdefault(count, []).append(sum(pss) + cached)
        what = f"{count} at once, {number}: "
        for i, clone in enumerate(self.clones):
            self.report.number(f"{what}clone {i} answers after", clone.seconds, "s")
        self.report.number(f"{what}last command ended after", max(clone.command_s for clone in self.clones), "s")
        self.report.number(f"{what}sum of Pss", sum(pss) / GIB, "GiB")
        self.report.number(f"{what}growth of page cache and tmpfs", cached / GIB, "GiB")
        self.report.number(f"{what}arenas", arenas / GIB, "GiB")
        self.report.number(f"{what}less memory is available by",
                           (before["MemAvailable"] - after["MemAvailable"]) / GIB, "GiB")
        for clone in self.clones:
            self.report.time(clone.name, "restore", clone.command_s, clone.account)
            clone.finish()
        self.clones = []
        return ""

    def compare(self):
        def usual(values):
            return statistics.median(values[WARM_UP:] or values)

        one, all_of_them = usual(self.times[1]), usual(self.times[CLONES])
        self.report.number("one restore, until it answers:", one, "s")
        self.report.number(f"{CLONES} clones, until all answer:", all_of_them, "s")
        self.report.number(f"{CLONES} clones, relative to one:", all_of_them / one, "", None if SOFT else ("<=", 2.0))
        further = (usual(self.memory[CLONES]) - usual(self.memory[1])) / max(1, CLONES - 1)
        self.report.number("host memory of each further clone:", further / GIB, "GiB", ("<=", 1.0))
        return (f"{'clones':>8} {'all answer after':>18} {'host memory':>13}\n"
                + "\n".join(f"{n:8} {usual(self.times[n]):16.2f} s {usual(self.memory[n]) / GIB:9.2f} GiB"
                            for n in sorted(self.times)))

    def end(self):
        for clone in self.clones:
            clone.kill()
        if self.job is not None:
            self.job.kill()


def main():
    dist, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    gib = int(sys.argv[3]) if len(sys.argv) > 3 else 10
    report = Report(out, float(os.environ.get("BUDGET_S", "400")), "clones")
    machine = Machine(dist, report, SOFT)
    subject = Subject(machine, gib)
    try:
        report.step("dump", 300, subject.dump)
        for count in (1, CLONES):
            for number in range(1, ROUNDS + 1):
                report.step(f"{count} at once, {number}", 150, functools.partial(subject.restore, count, number))
        report.step("comparison", 10, subject.compare)
    finally:
        subject.end()
    code = report.finish()
    machine.clean()
    return code


if __name__ == "__main__":
    sys.exit(main())
