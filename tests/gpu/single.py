"""The steps of single.sh."""

import argparse
import functools
import os
import pathlib
import re
import statistics
import sys
import time

from harness import Output, Report, demand, run, tail, wait_until
from ride import Machine

SOFT = os.environ.get("GPU") == "soft"
PAIRS = int(os.environ.get("PAIRS", "3" if SOFT else "10"))
SIZES = ["8M", "64M"] if SOFT else ["256M", "4G"]


def idle_for(machine, seconds):
    """Sets how long helpers stay, and ends those of earlier commands."""
    machine.env["STASIS_HELPER_IDLE_S"] = str(seconds)
    machine.stasis(None, "arena", "free")


def helpers(machine, name="stasis-device-h"):
    """Returns the processes of that name that use this machine's state folder; by default the device helpers."""
    found = []
    state = f"STASIS_STATE_DIR={machine.env['STASIS_STATE_DIR']}".encode()
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if name in (folder / "comm").read_text() and state in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            pass
    return found


def pairs(machine, name, output, options, kind):
    """Suspends and resumes PAIRS times. Records the median wall-clock times of the commands and of the
    operations in them, in ms."""
    seconds = {"suspend": [], "resume": []}
    operation = {"suspend": [], "resume": []}
    for _ in range(PAIRS):
        for verb in seconds:
            words = [verb, name, *(options if verb == "suspend" else [])]
            done = machine.stasis(None, *words)
            seconds[verb].append(done.seconds)
            operation[verb].append(done.json()["total_s"])
        before = output.count()
        wait_until(lambda: output.count() > before, 30, "a round after the resume")
    for verb, times in seconds.items():
        machine.report.number(f"{verb}{' ' if options else ''}{' '.join(options)}, {kind}: command",
                              1e3 * statistics.median(times), "ms")
        machine.report.number("  the operation in it", 1e3 * statistics.median(operation[verb]), "ms")
    return {verb: statistics.median(times) for verb, times in seconds.items()}


def compare(machine, size):
    """Measures one program, first without resident helpers, then with them."""
    name = f"vector-{size.lower()}"
    idle_for(machine, 0)
    started = machine.stasis(None, "run", "--job", name, "--", machine.workload("vector"), "--memory", size,
                             "--interval", "20").json()
    output = Output(started["log"])
    wait_until(lambda: output.count() > 2, 60, f"its first rounds:\n{tail(output.text(), 800)}")
    try:
        lines = []
        for options in ([], ["--keep-context"]):
            idle_for(machine, 0)
            alone = pairs(machine, name, output, options, "no helper stays")
            demand(not helpers(machine), "a device helper stays")
            idle_for(machine, 60)
            machine.stasis(None, "suspend", name, *options)
            machine.stasis(None, "resume", name)
            demand(len(helpers(machine)) == 1, "no device helper stays")
            resident = pairs(machine, name, output, options, "helpers stay")
            lines += [f"{verb} {' '.join(options)}: {1e3 * alone[verb]:.0f} ms, {1e3 * resident[verb]:.0f} ms with "
                      f"resident helpers, a ratio of {resident[verb] / alone[verb]:.2f}" for verb in alone]
        machine.stasis(None, "kill", name)
        machine.stasis(None, "wait", name, expect=None)
        demand(output.failure() is None, f"the program's memory is wrong: {output.failure()}")
        return "\n".join(lines)
    finally:
        idle_for(machine, 0)
        machine.stasis(None, "kill", name, expect=None)


def resident_memory(machine):
    """Measures the GPU memory of a resident device helper while no program uses the GPU."""
    if SOFT:
        return "not asked on softgpu"
    idle_for(machine, 0)
    before = machine.gpu_memory()
    idle_for(machine, 60)
    machine.stasis(None, "gpu", "ls")
    present = helpers(machine)
    demand(len(present) == 1, f"device helpers: {present}")
    # An initialised driver shows in memory.used only if it has a context.
    time.sleep(1)
    during = machine.gpu_memory()
    held = run(["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader"], 30).out
    listed = re.search(rf"^{present[0]},", held, re.MULTILINE)
    idle_for(machine, 0)
    demand(not listed, f"the helper holds GPU memory: {held}")
    return f"GPU memory in use: {before} without the helper, {during} with it"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("dist")
    parser.add_argument("out")
    options = parser.parse_args()
    report = Report(options.out, float(os.environ.get("BUDGET_S", "120")), "single")
    machine = Machine(options.dist, report, SOFT)
    report.step("the memory of a resident helper", 40, functools.partial(resident_memory, machine))
    for size in SIZES:
        report.step(f"single commands, {size}", 60, functools.partial(compare, machine, size))
    machine.clean()
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
