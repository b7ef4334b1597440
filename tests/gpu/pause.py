"""The steps of pause.sh."""

import argparse
import functools
import os
import pathlib
import sys

from fast_path import GIB, SOFT, account_text, settle
from harness import Report
from images import Subject, span
from ride import Machine

THIRD = int(os.environ.get("THIRD", "2"))
BAR_S = 0.8
# The phases of the pause, in order. Phases of one row run one after the other.
PARTS = {
    "gates close": ["gate-close", "tree-check", "data-export"],
    "GPU state away": ["data-release", "gpu-lock", "gpu-checkpoint", "data-save", "data-commit", "gpu-release-check"],
    "image writer": ["image-writer"],
    "CRIU": ["cpu-dump"],
    "  of it describe": ["describe"],
    "GPU state back": ["gpu-return"],
}


def cpu_memory(pid):
    """Returns the bytes that CRIU saves of the processes of this session, about."""
    total = 0
    for status in pathlib.Path("/proc").glob("[0-9]*/status"):
        try:
            if os.getsid(int(status.parent.name)) != os.getsid(pid):
                continue
            words = status.read_text().split()
            total += sum(int(words[words.index(key) + 1]) * 1024 for key in ("RssAnon:", "RssShmem:") if key in words)
        except (OSError, ValueError):
            continue
    return total


def pauses(machine, subject):
    report = machine.report
    notes = []
    subject.start()
    report.number("CPU memory of the program:", cpu_memory(subject.job.pid) / GIB, "GiB")
    for n in range(2 + THIRD):
        what = ["first dump", "second dump"][n] if n < 2 else f"dump {n + 1}"
        account = subject.verb("dump", subject.name, "-d", machine.images, "--name", f"image-{n}", "--leave-running",
                               rounds=8 if n else 0)
        report.number(f"{what}, pause:", account["pause_s"], "s", ("<=", BAR_S))
        for part, names in PARTS.items():
            report.number(f"  {part}:", span(account, names), "s")
        report.number(f"{what}, before the pause (cpu-room):", span(account, ["cpu-room"]), "s")
        report.number(f"{what}, total:", account["total_s"], "s")
        stored = account["stored"]
        report.number(f"{what}, new data of GPU / CPU:", stored["gpu_bytes"] / GIB, f"GiB / {stored['cpu_bytes'] / GIB:.3f} GiB")
        notes += [account_text(account), *account["notes"]]
    machine.stasis(None, "image", "verify", machine.images / "image-1", timeout_s=90)
    return settle(report, "\n".join([*notes, subject.end()]))


def main():
    parser = argparse.ArgumentParser(prog="pause.sh")
    parser.add_argument("dist", metavar="DIST_DIR")
    parser.add_argument("out", metavar="OUT_DIR")
    options = parser.parse_args()
    budget_s = float(os.environ.get("BUDGET_S", "230"))
    report = Report(options.out, budget_s, "pause")
    machine = Machine(options.dist, report, SOFT)
    subject = Subject(machine, "llama" if not SOFT else "vector")
    try:
        report.step_name = "early"
        subject.begin()
        report.step("pauses", budget_s - 10, functools.partial(pauses, machine, subject))
    finally:
        subject.kill()
        code = report.finish()
        machine.clean()
    return code


if __name__ == "__main__":
    sys.exit(main())
