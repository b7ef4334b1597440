"""The steps of images.sh."""

import argparse
import functools
import os
import pathlib
import shutil
import sys
import time

from fast_path import GIB, SOFT, Program, account_text, periodic, settle, start_vector, used_mib
from harness import Report, demand, is_alive, run, wait_until
from ride import Machine, sequence_is_whole

LAYERS = os.environ.get("LAYERS", "32")
CACHE = os.environ.get("CACHE_GIB", "20")
TOKENS = 48
WIRE = 54e9  # bytes per second


def phases(account):
    return {phase["name"]: phase["seconds"] for phase in account["phases"]}


def span(account, names):
    """Returns the seconds from the start of the first of these phases to the end of the last; 0 if
    there are none."""
    found = [phase for phase in account["phases"] if phase["name"] in names]
    if not found:
        return 0.0
    return max(p["start_s"] + p["seconds"] for p in found) - min(p["start_s"] for p in found)


class Subject:
    """The program and its output."""

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
        """Returns an account. The program continues afterwards, unless the command was to end it."""
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
    """Measures bytes per second of direct writes and reads in pieces of 64 MiB, with random bytes."""
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
        own = phases(down)
        control = own.get("gpu-lock", 0) + own.get("gpu-checkpoint", 0)
        if n > 0 and control:
            least = 1.2 * control + down["saved"]["copied_bytes"] / WIRE
            report.number("… / (control x 1.2 + changed bytes / wire)", down["total_s"] / least, "", ("<=", 1.0))
        report.number(f"resume, {what}:", up["total_s"], "s")
        notes.append(account_text(down))
    return settle(report, "\n".join(notes))


# The reference speed for the copy of changed bytes; `stasis bench` measured 54.4 to 54.8 on an
# H200.
WIRE_BYTES_PER_S = float(os.environ.get("WIRE_GB_S", "54")) * 1e9


def kept_context(machine, subject):
    """First only the data leaves; then the context too, by a suspend of the suspended program."""
    report, name = machine.report, subject.name
    notes = []
    before = used_mib(machine)
    for n in range(4):
        down = subject.verb("suspend", name, "--keep-context", rounds=0)
        left = used_mib(machine)
        up = subject.verb("resume", name)
        what = f"--keep-context, number {n + 1}"
        limit = 0.080 + down["saved"]["copied_bytes"] / WIRE_BYTES_PER_S
        report.number(f"suspend {what}:", down["total_s"], "s", ("<=", limit))
        report.number("… copied / unchanged", down["saved"]["copied_bytes"] / GIB,
                      f"GiB / {down['saved']['unchanged_bytes'] / GIB:.3f} GiB")
        report.number("… GPU memory in use before / after", before, f"MiB / {left} MiB")
        report.number(f"resume {what}:", up["total_s"], "s")
        gave = (before - left) * (1 << 20)
        demand(SOFT or gave >= 0.95 * down["shared_bytes"],
               f"{down['shared_bytes']} bytes were to leave the GPU, and {gave} did")
        used_driver = [p["name"] for p in down["phases"] + up["phases"] if p["name"].startswith("gpu-")]
        demand(not used_driver, f"the driver had a part in it: {used_driver}")
        notes += [account_text(down), account_text(up)]
    subject.verb("suspend", name, "--keep-context", rounds=0)
    down = subject.verb("suspend", name, rounds=0)
    up = subject.verb("resume", name)
    report.number("a suspend that takes the context too, afterwards:", down["total_s"], "s")
    notes += [account_text(down), account_text(up)]
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
    drop_caches()
    back = subject.job.restore(folder / "three").json()
    notes.append(shown(report, "restore from the disk", back))
    report.number("restore / (bytes / disk):", back["total_s"] / (third["image_bytes"] / speeds[1]), "", ("<=", 1.2))
    subject.job.wait_rounds(8, 30)
    return settle(report, "\n".join(notes))


def to_tmpfs(machine, subject):
    """Measures storage as fast as memory, and a restore with everything cached."""
    report = machine.report
    folder = pathlib.Path(os.environ.get("SHM", "/dev/shm")) / "stasis-images"
    shutil.rmtree(machine.images, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    try:
        account = subject.verb("dump", subject.name, "-d", folder, "--name", "memory", rounds=0)
        notes = [shown(report, "dump to tmpfs", account)]
        own = phases(account)
        # The path of the GPU's data from the GPU to packs, and that of the CPU's data.
        data = span(account, ["gpu-control", "data-save", "data-write"])
        criu = own.get("cpu-dump", 0)
        report.number(f"… / max(data path {data:.2f} s, CRIU {criu:.2f} s):", account["total_s"] / max(data, criu), "",
                      ("<=", 1.2))
        report.number("… / their sum:", account["total_s"] / (data + criu), "")
        report.number("… data-write:", account["stored"]["gpu_bytes"] / max(own.get("data-write", 0), 0.001) / 1e9,
                      f"GB/s, to {len(list((folder / 'memory' / 'packs').iterdir()))} packs")
        wait_until(lambda: not is_alive(subject.job.pid), 20, "the end of the dumped program")
        back = subject.job.restore(folder / "memory").json()
        notes.append(shown(report, "restore from memory", back))
        report.number("restore from memory:", back["total_s"], "s", ("<=", 2.5))
        subject.job.wait_rounds(8, 30)
        again = subject.verb("dump", subject.name, "-d", folder, "--name", "again", "--leave-running")
        notes.append(shown(report, "second dump to tmpfs", again))
        return settle(report, "\n".join([*notes, subject.end()]))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def drop_caches():
    os.sync()
    pathlib.Path("/proc/sys/vm/drop_caches").write_text("3\n")


def sizes(machine):
    """Measures how the cost grows with size, and what `--compress auto` costs for incompressible data."""
    report = machine.report
    notes = []
    for gib in [1, 8, 32]:
        shutil.rmtree(machine.images, ignore_errors=True)
        machine.images.mkdir()
        memory = f"{gib * 8}M" if SOFT else f"{gib}G"
        job = start_vector(machine, f"vector-{gib}", memory)
        try:
            job.wait_rounds(3, 60)
            job.verb("suspend", job.name)
            job.verb("resume", job.name)  # mover and arena are warm
            for what, words in [("dump", []), ("… with --compress auto", ["--compress", "auto"])][:2 if gib == 8 else 1]:
                account = job.verb("dump", job.name, "-d", machine.images, "--name", f"image{len(words)}", "--full",
                                   "--leave-running", *words, timeout_s=120).json()
                notes.append(shown(report, f"{gib} GiB: {what}", account))
            job.verb("dump", job.name, "-d", machine.images, "--name", "last", timeout_s=120)
            wait_until(lambda j=job: not is_alive(j.pid), 20, "the end of the dumped program")
            drop_caches()
            notes.append(shown(report, f"{gib} GiB: restore from the disk", job.restore(machine.images / "last").json()))
            job.wait_rounds(3, 60)
            job.finish()
            sequence_is_whole(job.output)
        finally:
            job.kill()
    return settle(report, "\n".join(notes))


def plain(machine, subject):
    """The driver's checkpoint followed by CRIU."""
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
    without = Subject(machine, "plain", agent=False) if os.environ.get("PLAIN") == "yes" else None
    speeds = [1.0, 1.0]

    def measure_disk():
        speeds[:] = disk(report, machine.images)

    try:
        report.step_name = "early"
        subject.begin()
        if without:
            without.begin()
        report.step("disk", 60, measure_disk)
        report.step("suspends", 150, functools.partial(incremental, machine, subject))
        report.step("keep-context", 100, functools.partial(kept_context, machine, subject))
        report.step("dumps", 200, lambda: dumps(machine, subject, speeds))
        report.step("tmpfs", 100, functools.partial(to_tmpfs, machine, subject))
        if without:
            report.step("plain", 200, functools.partial(plain, machine, without))
        if os.environ.get("SIZES") == "yes":
            report.step("sizes", 200, functools.partial(sizes, machine))
    finally:
        subject.kill()
        if without:
            without.kill()
        code = report.finish()
        machine.clean()
    return code


if __name__ == "__main__":
    sys.exit(main())
