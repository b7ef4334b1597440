"""The steps of trees.sh."""

import argparse
import functools
import json
import os
import pathlib
import sys

from fast_path import SOFT, settle, this_machine
from harness import Report, StepSkipped, demand, is_alive, tail, wait_until
from ride import Job, Machine, ride

HERE = pathlib.Path(__file__).resolve().parent


class Probe:
    """fork_probe.py and its output."""

    def __init__(self, machine, name, *words, agent, env=None):
        self.job = Job(machine, name, [sys.executable, HERE / "fork_probe.py", *words], env=env, agent=agent)
        wait_until(lambda: "\nCHILD " in self.job.output.text() or not is_alive(self.job.pid), 60, "the child")
        demand(is_alive(self.job.pid), f"the probe has ended:\n{tail(self.job.output.text(), 800)}")
        self.said = {}
        for line in self.job.output.text().splitlines():
            key, _, value = line.partition(" ")
            try:
                self.said[key] = json.loads(value)
            except ValueError:
                pass

    def __getitem__(self, key):
        return self.said.get(key)

    def end(self):
        self.job.finish()

    def kill(self):
        self.job.kill()


def by_path(mappings):
    """Returns {path: [number, MiB, common flags]}"""
    found = {}
    for begin, end, perms, path, flags in mappings:
        entry = found.setdefault(f"{path} {perms}", [0, 0, set(flags.split())])
        entry[0] += 1
        entry[1] += (end - begin) / 2**20
        entry[2] &= set(flags.split())
    return {path: f"{n} of {mib:.1f} MiB in all, flags {' '.join(sorted(flags))}"
            for path, (n, mib, flags) in sorted(found.items())}


def lines(title, table):
    return [title] + [f"  {key}: {value}" for key, value in table.items()] if table else [f"{title} none"]


def what_a_child_has(machine):
    """Reports the child's resources without checking them, because without the agent they depend on the driver."""
    plain = Probe(machine, "fork-plain", "--managed", "--nvml", agent=False)
    try:
        machine.report.number("fork and end of a child, without the agent:", plain["FORK-MS"], "ms")
        note = lines("parent, descriptors:", plain["PARENT-FDS"])
        note += lines("parent, mappings:", by_path(plain["PARENT-MAPPINGS"]))
        note += lines("child, descriptors:", plain["CHILD-FDS"])
        note += lines("child, mappings:", by_path(plain["CHILD-MAPPINGS"]))
        for key in ("PINNED", "MANAGED", "NVML"):
            note.append(f"{key.lower()}: parent {plain['PARENT-' + key]}, child {plain['CHILD-' + key]}")
        note.append(f"child: cuCtxSynchronize {plain['CHILD-SYNCHRONIZE']}, cuInit {plain['CHILD-INIT']}")
        state = machine.stasis(None, "gpu", "state", plain["CHILD"], expect=None)
        note.append(f"what the driver calls the child: {state.out.strip() or state.err.strip()}")
        plain.end()
        # The summary shortens notes; this is the complete one.
        machine.log("fork-plain-table").write_text("\n".join(note) + "\n")
        return "\n".join(note)
    finally:
        plain.kill()


def what_the_agent_leaves(machine):
    """The child has only those GPU resources that the program may read there, with the same results
    as without the agent."""
    probes = []
    try:
        for agent in (False, True):
            probes.append(Probe(machine, f"fork-{'agent' if agent else 'without'}", "--nvml", agent=agent))
        plain, under = probes
        demand(not under["CHILD-FDS"], f"the child holds {under['CHILD-FDS']}")
        demand(not under["CHILD-MAPPINGS"], f"the child has mapped {by_path(under['CHILD-MAPPINGS'])}")
        for key in ("CHILD-SYNCHRONIZE", "CHILD-INIT"):
            demand(under[key] == plain[key], f"{key}: {under[key]}, and {plain[key]} without the agent")
        demand(under["CHILD-PINNED"][1] == plain["CHILD-PINNED"][1],
               f"pinned memory: {under['CHILD-PINNED']}, and {plain['CHILD-PINNED']} without the agent")
        for fd in under["PARENT-FDS"]:
            demand(int(fd) in under["CHILD-NUMBERS"], f"descriptor {fd} of the child is free for others")
        machine.report.number("fork and end of a child, without the agent:", plain["FORK-MS"], "ms")
        machine.report.number("with the agent:", under["FORK-MS"], "ms")
        note = f"NVML opened by the parent, asked by the child: {under['CHILD-NVML']} under the agent, " \
               f"{plain['CHILD-NVML']} without"
        for probe in probes:
            probe.end()
        return settle(machine.report, note)
    finally:
        for probe in probes:
            probe.kill()


def dumped(machine, *, env=None, refused=None):
    name = "fork-kept" if refused else "fork-dumped"
    probe = Probe(machine, name, agent=True, env=env)
    try:
        job = probe.job
        job.verb("suspend", name)
        job.verb("resume", name)
        image = machine.images / name
        dump = job.verb("dump", name, "-d", machine.images, "--name", name, expect=None if refused else 0)
        if refused:
            job.demand_refusal(dump, refused)
            probe.end()
            return dump.err.strip().splitlines()[0]
        wait_until(lambda: not is_alive(job.pid), 20, "the end of the dumped program")
        job.restore(image)
        demand(is_alive(probe["CHILD"]), "the child did not come back")
        probe.end()
        return f"an image of {sum(f.stat().st_size for f in image.rglob('*') if f.is_file()) / 1e6:.0f} MB"
    finally:
        probe.kill()


def data_loader(machine):
    if SOFT:
        raise StepSkipped("it needs a real GPU")
    rounds, note = ride(machine, "loader", [sys.executable, HERE / "torch_training.py", "--workers", "2"],
                        ready_s=120, rounds_s=60)
    return f"{note}\n{len(rounds)} steps of training".strip()


def main():
    parser = argparse.ArgumentParser(prog="trees.sh")
    parser.add_argument("dist", metavar="DIST_DIR")
    parser.add_argument("out", metavar="OUT_DIR")
    parser.add_argument("steps", metavar="STEP", nargs="*")
    options = parser.parse_args()
    report = Report(options.out, float(os.environ.get("BUDGET_S", "240")), "trees")
    machine = Machine(options.dist, report, SOFT)
    steps = [
        ("machine", 30, this_machine),
        ("child-plain", 60, what_a_child_has),
        ("child-agent", 60, what_the_agent_leaves),
        ("dumped", 60, dumped),
        ("kept", 60, functools.partial(dumped, env={"STASIS_FORK_KEEPS_GPU_FILES": "1"},
                                       refused=r"process PID .* holds GPU files")),
        ("forker", 60, lambda m: ride(m, "forker", [m.workload("forker"), "--memory", "64M"])[1]),
        ("loader", 200, data_loader),
    ]
    try:
        for name, limit_s, function in steps:
            if options.steps and not any(name.startswith(prefix) for prefix in options.steps):
                continue
            report.step(name, limit_s, functools.partial(function, machine))
    finally:
        code = report.finish()
        machine.clean()
    return code


if __name__ == "__main__":
    sys.exit(main())
