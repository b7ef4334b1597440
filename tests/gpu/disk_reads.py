"""Measures how fast a machine's disk reads an image, with `dd` and with a restore. Writes three
images of the same program, each with its own packs, one after the other, and reads each for the
first time. A virtual machine's disk is faster for the first gigabytes than for the rest, so small
files are not representative.

  disk_reads.py DIST_DIR OUT_DIR      MEMORY (12G); GPU=soft: on softgpu, with 64M

Writes OUT_DIR/summary.txt and OUT_DIR/disk_reads.json. Takes about 90 seconds on an H200, and 3 x
MEMORY of disk.
"""

import functools
import os
import pathlib
import sys
import time

from fast_path import SOFT, start_vector
from harness import Report, demand, is_alive, run, wait_until
from images import drop_caches, phases
from ride import Machine, sequence_is_whole

MEMORY = os.environ.get("MEMORY", "64M" if SOFT else "12G")


def read(paths, at_a_time):
    """Measures bytes per second, bypassing the page cache, with this many files at a time."""
    drop_caches()
    words = " ".join(f"'{p}'" for p in paths)
    began = time.monotonic()
    done = run(["sh", "-c", f"printf '%s\\n' {words} | xargs -P {at_a_time} -I F dd if=F of=/dev/null bs=64M iflag=direct "
                "status=none"], 120)
    demand(done.code == 0, f"dd failed: {done.err}")
    return sum(p.stat().st_size for p in paths) / (time.monotonic() - began)


def body(machine):
    report = machine.report
    job = start_vector(machine, "vector", MEMORY)
    try:
        job.wait_rounds(3, 60)
        for name in ["one", "two", "three"]:
            words = [] if name == "three" else ["--leave-running"]
            account = job.verb("dump", job.name, "-d", machine.images, "--name", name, "--full", *words,
                               timeout_s=120).json()
            report.number(f"dump {name}:", account["image_bytes"] / account["total_s"] / 1e9, "GB/s")
        wait_until(lambda: not is_alive(job.pid), 20, "the end of the dumped program")
        packs = {name: sorted((machine.images / name / "packs").iterdir()) for name in ["one", "two"]}
        report.number(f"dd, {len(packs['one'])} packs one after the other:", read(packs["one"], 1) / 1e9, "GB/s")
        drop_caches()
        account = job.restore(machine.images / "three").json()
        report.number("restore:", account["image_bytes"] / account["total_s"] / 1e9, "GB/s")
        report.number("… its GPU data alone:", account["shared_bytes"] / phases(account)["data-load"] / 1e9, "GB/s")
        job.wait_rounds(3, 60)
        report.number(f"dd, {len(packs['two'])} packs, 8 at a time:", read(packs["two"], 8) / 1e9, "GB/s")
        job.finish()
        sequence_is_whole(job.output)
    finally:
        job.kill()
    return ""


def main():
    dist, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    report = Report(out, 150, "disk_reads")
    machine = Machine(dist, report, SOFT)
    report.step("reads", 140, functools.partial(body, machine))
    code = report.finish()
    machine.clean()
    return code


if __name__ == "__main__":
    sys.exit(main())
