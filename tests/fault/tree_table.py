"""tree_table.py --build DIR tree | tree-kill | tree-member | tree-member-all: a tree of eight processes on two GPUs that
share memory, by CUDA IPC and by exported handles (workloads/ring.cc).

tree: in one of the eight a call of the driver fails, its agent's or the driver's own: none of them is left
suspended or half-way, and all run on with the right data. tree-kill: the command dies at each phase.
tree-member: one of the eight dies at phases that differ for the others, tree-member-all: at each; and two of them
when all run again.
"""

import re
import sys

from stand import JOB, Program, Stand, demand, main, processes, wait_until

CHILDREN, MEMBER = 8, 3

# Verb, state before, the call that fails in one member: of the driver, or of its agent.
FAULTS = [
    ("suspend", "running", "cuCtxSynchronize:1=fail(999)"),                      # gate-close
    ("suspend", "running", "cuMemExportToShareableHandle:1=fail(999)"),          # data-export
    ("suspend", "running", "cuMemUnmap:1=fail(999)"),                            # data-release
    ("suspend", "running", "target:cuCheckpointProcessLock:1=fail(999)"),
    ("suspend", "running", "target:cuCheckpointProcessCheckpoint:1=fail(999)"),
    ("resume", "suspended", "target:cuCheckpointProcessRestore:1=fail(999)"),
    ("resume", "suspended", "target:cuCheckpointProcessUnlock:1=fail(999)"),
    ("resume", "suspended", "cuMemImportFromShareableHandle:1=fail(999)"),       # data-return
    ("dump", "running", "cuMemUnmap:1=fail(999)"),
    ("dump", "running", "target:cuCheckpointProcessCheckpoint:1=fail(999)"),
    ("restore", "dumped", "target:cuCheckpointProcessRestore:1=fail(999)"),
    ("restore", "dumped", "cuMemImportFromShareableHandle:1=fail(999)"),
]

# Where the command dies: at all phases where the way back is by processes, at some where it is by images.
KILLS = {
    "suspend": ("running", None),
    "resume": ("suspended", None),
    "dump": ("running", ["data-release", "gpu-checkpoint", "cpu-dump", "describe"]),
    "restore": ("dumped", ["data-read", "cpu-restore", "data-bind", "gpu-restore", "data-return"]),
}

# Where one of the eight dies. Each death costs the tree, so these are phases whose way back differs: nobody's memory has
# left; all of it has; the driver has their contexts too; it gives them back; the memory comes back; there is an image.
DEATHS = {
    "suspend": ("running", ["gate-close", "data-release", "gpu-checkpoint"]),
    "resume": ("suspended", ["gpu-restore", "data-return"]),
    "dump": ("running", ["describe", "commit"]),
    "restore": ("dumped", ["data-return"]),
}
ALL_DEATHS = {
    "suspend": ("running", None),
    "resume": ("suspended", None),
    "dump": ("running", ["data-release", "gpu-checkpoint", "describe", "commit"]),
    "restore": ("dumped", ["cpu-restore", "data-bind", "gpu-restore", "data-return", "adopt"]),
}


class Tree(Program):
    """Its parent uses no GPU: the state is that of the children, if it is the same."""

    def members(self):
        return [p for p in processes.children(self.pid) if processes.is_alive(p)]

    def gpu_state(self):
        listed = self.world.stasis("gpu", "ls", "--json").json()["processes"]
        states = {p["pid"]: p["state"] for p in listed}
        found = [states.get(pid, "none") for pid in self.members()]
        demand(len(found) == CHILDREN, f"{len(found)} of the tree are left")
        return found[0] if len(set(found)) == 1 else f"mixed: {found}"


class TreeStand(Stand):
    def __init__(self, build):
        super().__init__(build)
        self.world.set_gpu(2, "512M")

    def new_program(self):
        return Tree(self.world, JOB, "ring", ["--children", CHILDREN, "--devices", 2, "--memory", "1M",
                                              "--interval", "20"])

    def expect_gone(self, said):
        """By themselves, but for those that are said not to run on, and nobody has found anything wrong."""
        def left():
            self.world.reap()
            return [p for p in processes.all_pids() if (processes.stat(p) or ("",))[0] == "ring"]
        # The nearest in front of it: the message may begin with who has ended.
        stuck = {int(pid) for pid in
                 re.findall(r"process (\d+)(?:(?!process)[^.])* uses GPU memory of process \d+ .CUDA IPC., which cannot", said)}
        demand(len(stuck) <= 1, f"more than one uses memory of the dead: {said}")
        # It does not run on, so that it can only be ended; the parent may be waiting for it, and all others for the parent.
        for pid in stuck:
            processes.end(pid)
        self.world.stasis("recover", expect=None)
        wait_until(lambda: not left(), 60, lambda: f"still there: {list(map(processes.describe, left()))}\n{said}")
        failed = [line for line in self.program.output().splitlines() if line.startswith("FAILED")]
        other = [line for line in failed if "is gone" not in line and "Broken pipe" not in line]
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
    """Of one, or of several at once. Their parent says so and ends, and the others end by themselves, each when it has compared what it holds: so
    they must have their memory back. Only who uses memory of the one that died may be left behind its gate, and
    that is said by its pid. Who died is always said, whoever else has ended of it by then."""
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
    # They may be suspended, as they were before or because that was done.
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
        for verb, before, rule in FAULTS:
            stand.case(f"{verb}: {rule} in one of {CHILDREN}", one_fails, verb, before, rule)
        return
    does, strike, verbs = {"tree-kill": ("dies", killed, KILLS), "tree-member": ("loses one", dies, DEATHS),
                            "tree-member-all": ("loses one", dies, ALL_DEATHS)}[table]
    for verb, (before, phases) in verbs.items():
        stand.prepare(before)
        planned = stand.operate(verb, "--dry-run", "--json").json()["planned_phases"]
        for phase in phases or planned:
            demand(phase in planned, f"{verb} has no {phase}: {planned}")
            stand.case(f"{verb} {does} after {phase}", strike, verb, before, phase)
    if strike is dies:
        # They run by then, so that others end of it; who was first cannot be seen.
        stand.case("restore loses two after data-return", dies, "restore", "dumped", "data-return", 2)


if __name__ == "__main__":
    sys.exit(main(["tree", "tree-kill", "tree-member", "tree-member-all"], run, TreeStand))
