"""tree_table.py --build DIR [--all] tree | tree-kill | tree-member: a tree of eight processes on
two GPUs that share memory through CUDA IPC and exported handles (workloads/ring.cc).

tree: a driver call fails in one of the eight, made by its agent or by the driver's checkpoint. No process stays
suspended or half-way, and all continue with the right data. tree-kill: the command dies at each phase. tree-member: one
of the eight dies at a phase, and later two of them when all run again. Without --all only the calls and phases whose
roll-backs differ most are used.
"""

import re
import sys

from stand import JOB, Program, Stand, demand, main, processes, wait_until

CHILDREN, MEMBER = 8, 3

# Command, initial state, and the call that fails in one member, of the driver or its agent.
FAULTS = [
    ("suspend", "running", "cuMemUnmap:1=fail(999)"),                            # data-release
    ("suspend", "running", "target:cuCheckpointProcessCheckpoint:1=fail(999)"),
    ("resume", "suspended", "target:cuCheckpointProcessRestore:1=fail(999)"),
    ("resume", "suspended", "cuMemImportFromShareableHandle:1=fail(999)"),       # data-return
    ("dump", "running", "target:cuCheckpointProcessCheckpoint:1=fail(999)"),
    ("restore", "dumped", "cuMemImportFromShareableHandle:1=fail(999)"),
]
# Only with --all.
MORE_FAULTS = [
    ("suspend", "running", "cuCtxSynchronize:1=fail(999)"),                      # gate-close
    ("suspend", "running", "cuMemExportToShareableHandle:1=fail(999)"),          # data-export
    ("suspend", "running", "target:cuCheckpointProcessLock:1=fail(999)"),
    ("resume", "suspended", "target:cuCheckpointProcessUnlock:1=fail(999)"),
    ("dump", "running", "cuMemUnmap:1=fail(999)"),
    ("restore", "dumped", "target:cuCheckpointProcessRestore:1=fail(999)"),
]

# Phases at which the command dies. The first of each pair is for ordinary runs, the second for
# --all; None: all phases.
KILLS = {
    "suspend": ("running", ["data-release", "gpu-checkpoint", "data-commit"], None),
    "resume": ("suspended", ["gpu-restore", "data-return"], None),
    "dump": ("running", ["describe"], ["data-release", "gpu-checkpoint", "cpu-dump", "describe"]),
    "restore": ("dumped", ["data-bind"], ["data-read", "cpu-restore", "data-bind", "gpu-restore", "data-return"]),
}

# Phases at which one of the eight dies, likewise. Each death ends the tree, so these are phases with different
# roll-backs: all memory has been removed; the contexts return; the memory returns; an image exists.
DEATHS = {
    "suspend": ("running", ["data-release"], None),
    "resume": ("suspended", ["data-return"], None),
    "dump": ("running", ["commit"], ["data-release", "gpu-checkpoint", "describe", "commit"]),
    "restore": ("dumped", ["data-return"], ["cpu-restore", "data-bind", "gpu-restore", "data-return", "adopt"]),
}


class Tree(Program):
    """The parent uses no GPU: returns the children's state if they agree."""

    def __init__(self, world, name, children):
        super().__init__(world, name, "ring", ["--children", children, "--devices", 2, "--memory", "1M", "--interval", "20"])
        self.children = children

    def members(self):
        return [p for p in processes.children(self.pid) if processes.is_alive(p)]

    def gpu_state(self):
        listed = self.world.stasis("gpu", "ls", "--json").json()["processes"]
        states = {p["pid"]: p["state"] for p in listed}
        found = [states.get(pid, "none") for pid in self.members()]
        demand(len(found) == self.children, f"{len(found)} of the tree are left")
        return found[0] if len(set(found)) == 1 else f"mixed: {found}"


class TreeStand(Stand):
    def __init__(self, build, children=CHILDREN):
        super().__init__(build)
        self.world.set_gpu(2, "512M")
        self.children = children

    def new_program(self):
        return Tree(self.world, JOB, self.children)

    def expect_gone(self, said):
        """Waits until all have exited by themselves, except those reported as stuck, without an
        error in their data."""
        def left():
            self.world.reap()
            return [p for p in processes.all_pids() if (processes.stat(p) or ("",))[0] == "ring"]
        # Find the nearest pid before the phrase, because the message may start with a process that has ended.
        stuck = {int(pid) for pid in
                 re.findall(r"process (\d+)(?:(?!process)[^.])* uses GPU memory of process \d+ .CUDA IPC., which cannot", said)}
        demand(len(stuck) <= 1, f"more than one process uses memory of the dead one: {said}")
        # A stuck process can only be killed; the parent may wait for it, and all others for the
        # parent.
        for pid in stuck:
            processes.end(pid)
        self.world.stasis("recover", expect=None)
        wait_until(lambda: not left(), 60, lambda: f"still there: {list(map(processes.describe, left()))}\n{said}")
        failed = [line for line in self.program.output().splitlines() if line.startswith("FAILED")]
        other = [line for line in failed if "has ended" not in line and "Broken pipe" not in line]
        demand(not other, f"{other}\n{said}")
        self.world.expect_clean()


def one_fails(stand, verb, before, rule):
    stand.prepare(before if before != "dumped" else "running")
    member = stand.program.members()[MEMBER]
    stand.prepare(before)
    stand.world.gpu_fault(rule + "\n", member)
    try:
        command = stand.operate(verb)
    finally:
        stand.world.gpu_fault("", member)
    demand(command.code in (1, 5, 6), f"exit code {command.code}:\n{command}")
    demand(f"process {member}" in command.err, f"it does not say that it was process {member}:\n{command}")
    stand.settle(before, verb, command)


def killed(stand, verb, before, phase):
    stand.prepare(before)
    command = stand.operate(verb, env={"STASIS_FAULT": f"{phase}:after:die"})
    demand(command.code == -9, f"it was to die:\n{command}")
    stand.recover()
    stand.expect_sound(before, verb, None)


def dies(stand, verb, before, phase, number=1):
    """One or several members die. Their parent reports that and exits, and the others exit by
    themselves after verifying their data, so they must have their memory back. Only processes that
    use memory of a dead one may be left blocked at their gate, and the message gives their pids.
    Dead processes are always named, even if others have exited because of them by then."""
    stand.prepare("running" if before == "dumped" else before)
    doomed = stand.program.members()[MEMBER - number + 1:MEMBER + 1]
    stand.prepare(before)
    command = stand.operate(verb, env={"STASIS_FAULT": ",".join(f"{phase}:after:kill={pid}" for pid in doomed)})
    demand(command.code in (0, 1, 5, 6), f"exit code {command.code}:\n{command}")
    said = [command.err]
    if command.code == 6:
        said.append(stand.world.stasis("recover", expect=None).out)
    for pid in doomed:
        demand(command.code == 0 or re.search(rf"\b{pid}\b", " ".join(said)), f"it does not say that {pid} died:\n{command}")
    # The remaining processes may be suspended, as before or by the operation.
    said.append(stand.world.stasis("resume", JOB, expect=None).err)
    stand.expect_gone(" ".join(said))
    stand.world.stasis("wait", JOB, expect=None)
    if stand.image_exists():
        stand.world.stasis("image", "verify", stand.image_folder())
        stand.expect_restorable(False)
    else:
        demand(before != "dumped", "the image is gone")
        stand.end_program()


def run(stand, table):
    if table == "tree":
        for verb, before, rule in FAULTS + (MORE_FAULTS if stand.every else []):
            stand.case(f"{verb}: {rule} in one of {CHILDREN}", one_fails, verb, before, rule)
        return
    does, strike, verbs = {"tree-kill": ("dies", killed, KILLS), "tree-member": ("loses one", dies, DEATHS)}[table]
    for verb, (before, some, every) in verbs.items():
        stand.prepare(before)
        planned = stand.operate(verb, "--dry-run", "--json").json()["planned_phases"]
        for phase in (every or planned) if stand.every else some:
            demand(phase in planned, f"{verb} has no {phase}: {planned}")
            stand.case(f"{verb} {does} after {phase}", strike, verb, before, phase)
    if strike is dies:
        # All processes run by then, so the deaths make others exit; which one was first is not visible.
        stand.case("restore loses two after data-return", dies, "restore", "dumped", "data-return", 2)


if __name__ == "__main__":
    sys.exit(main(["tree", "tree-kill", "tree-member"], run, TreeStand))
