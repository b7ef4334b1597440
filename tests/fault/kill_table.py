"""kill_table.py --build DIR [--all] kill | kill-shim | kill-hip: SIGKILL to each Stasis process in the
middle of an operation.

The operation is made to hang at a phase, which defines the moment, or the process is killed as soon
as it appears.
"""

import signal
import sys

from stand import Stand, demand, main, processes, wait_until

HELPER, CRIU, SHIM, MOVER = "stasis-device-helper", "criu", "stasis-shim", "stasis-mover"
OWN = "stasis"
APART = "--new-pidns"

# On a busy machine a short deadline may expire before the phase is reached; then a longer one is
# tried.
HANG_S = ["3", "15"]

# Command, options, initial state, phase to hang at, process to kill.
AT_PHASE = [
    ("suspend", [], "running", "gpu-lock:after", HELPER),
    ("suspend", [], "running", "gpu-checkpoint:after", HELPER),
    ("suspend", [], "running", "gpu-checkpoint:after", SHIM),
    ("suspend", ["--keep-context"], "running", "data-save:before", MOVER),
    ("resume", [], "suspended", "gpu-restore:after", HELPER),
    ("resume", [], "kept", "data-load:after", MOVER),
    ("dump", [], "running", "commit:before", CRIU),
    ("dump", [], "running", "commit:before", SHIM),
    ("dump", [], "running", "commit:after", CRIU),
    ("dump", [], "running", "commit:after", SHIM),
    ("dump", ["--leave-running"], "running", "describe:before", CRIU),
    ("dump", ["--leave-running"], "running", "describe:before", OWN),
    ("dump", ["--leave-running"], "running", "commit:before", OWN),
    ("dump", ["--leave-running"], "running", "commit:after", OWN),
    ("dump", ["--leave-running"], "running", "gpu-return:before", HELPER),
    ("restore", [], "dumped", "data-read:after", CRIU),
    ("restore", [], "dumped", "data-load:before", MOVER),
    ("restore", [], "dumped", "data-load:before", SHIM),
    ("restore", [], "dumped", "cpu-restore:after", SHIM),
    ("restore", [], "dumped", "gpu-restore:before", HELPER),
    ("restore", [], "dumped", "adopt:after", SHIM),
    # The shim is the init process of the pid namespace, so the program dies with it.
    ("restore", [APART], "dumped", "cpu-restore:after", SHIM),
    ("restore", [APART], "dumped", "cpu-restore:after", OWN),
    ("restore", [APART], "dumped", "adopt:after", OWN),
    ("dump", [], "apart", "commit:after", CRIU),
]
# Only with --all.
MORE_AT_PHASE = [
    ("suspend", [], "running", "gpu-lock:before", HELPER),
    ("suspend", ["--keep-context"], "running", "data-save:after", MOVER),
    ("resume", [], "suspended", "gpu-restore:before", HELPER),
    ("resume", [], "kept", "data-load:before", MOVER),
    ("resume", [], "suspended", "gpu-unlock:before", SHIM),
    ("dump", [], "running", "gpu-checkpoint:after", HELPER),
    ("dump", [], "running", "criu-start:after", CRIU),
    ("dump", [], "running", "cpu-dump:before", SHIM),
    ("dump", [], "running", "describe:before", CRIU),
    ("dump", ["--leave-running"], "running", "cpu-room:after", OWN),
    ("dump", ["--leave-running"], "running", "cpu-write:before", OWN),
    ("dump", ["--leave-running"], "running", "data-write:before", OWN),
    ("dump", ["--leave-running"], "running", "data-write:after", HELPER),
    ("restore", [], "dumped", "data-read:after", MOVER),
    ("restore", [], "dumped", "gpu-restore:after", SHIM),
    ("restore", [], "dumped", "adopt:before", SHIM),
    ("restore", [APART], "dumped", "data-read:after", CRIU),
    ("restore", [APART], "dumped", "data-load:before", SHIM),
    ("restore", [APART], "dumped", "gpu-restore:after", OWN),
    ("restore", [APART], "dumped", "adopt:before", SHIM),
    ("restore", [APART], "dumped", "adopt:after", SHIM),
    ("suspend", [], "apart", "gpu-checkpoint:after", OWN),
    ("dump", [], "apart", "describe:before", CRIU),
    ("dump", [], "apart", "describe:before", OWN),
    ("dump", ["--leave-running"], "apart", "commit:before", OWN),
]

# For a program that uses HIP, in the table kill-hip.
HIP_AT_PHASE = [
    ("suspend", [], "running", "data-save:before", MOVER),
    ("suspend", [], "running", "data-save:after", MOVER),
    ("suspend", [], "running", "data-save:before", OWN),
    ("suspend", [], "running", "data-save:after", OWN),
    ("suspend", [], "running", "data-release:before", OWN),
    ("suspend", [], "running", "data-release:after", OWN),
    ("suspend", [], "running", "data-save:after", SHIM),
    ("resume", [], "kept", "data-load:before", MOVER),
    ("resume", [], "kept", "data-load:after", MOVER),
    ("resume", [], "kept", "data-load:before", OWN),
    ("resume", [], "kept", "data-load:after", OWN),
    ("dump", [], "running", "describe:before", OWN),
    ("dump", [], "running", "describe:before", CRIU),
    ("dump", [], "running", "commit:after", CRIU),
    ("dump", ["--leave-running"], "running", "describe:before", OWN),
    ("dump", ["--leave-running"], "running", "commit:after", OWN),
]

# Command, options, initial state, process to wait for, process to kill.
ON_SIGHT = [
    ("suspend", [], "running", HELPER, OWN),
    ("dump", [], "running", CRIU, OWN),
    ("restore", [], "dumped", SHIM, SHIM),
    ("restore", [], "dumped", CRIU, CRIU),
    ("restore", [APART], "dumped", SHIM, OWN),
]
# Only with --all.
MORE_ON_SIGHT = [
    ("suspend", [], "running", HELPER, HELPER),
    ("dump", [], "running", CRIU, CRIU),
    ("dump", ["--leave-running"], "running", CRIU, OWN),
    ("restore", [], "dumped", SHIM, OWN),
    ("restore", [], "dumped", CRIU, OWN),
    ("restore", [APART], "dumped", SHIM, SHIM),
    ("restore", [APART], "dumped", CRIU, CRIU),
    ("restore", [APART], "dumped", CRIU, OWN),
    ("dump", [], "apart", CRIU, OWN),
]


def find(stand, who, operation, known):
    """Returns the process called `who` that works for this operation, or None."""
    if who == OWN:
        return operation.pid
    found = [p for p in processes.all_pids()
             if (processes.stat(p) or ("", "Z"))[0] == who[:15] and processes.is_alive(p)]
    if who != SHIM:
        return found[0] if found else None
    # A restore has a new shim; a dump uses the job's. The command's own child only starts it and
    # exits.
    return next((p for p in found if p not in known and (processes.stat(p) or (0, 0, 0))[2] != operation.pid), None)


def shims(before):
    """Returns the shims to ignore: those from before a restore, which starts a new one."""
    if before != "dumped":
        return []
    return [p for p in processes.all_pids() if (processes.stat(p) or ("",))[0] == SHIM]


def settle(stand, operation, before, verb, who):
    code = operation.wait().code
    if who == OWN:
        demand(code == -signal.SIGKILL, f"it was killed:\n{operation}")
    if code not in (0, 1):
        # A helper that is still exiting holds inherited descriptors; `recover` waits for those
        # already exiting and leaves others to the next command.
        wait_until(lambda: stand.world.reap() or not find(stand, HELPER, operation, []), 60, "the helper stays")
        stand.recover()
    stand.world.expect_clean()
    if who == SHIM and verb != "restore":
        # The job has lost its shim, which would record its end; the program must not be affected.
        stand.expect_orphan(before, verb, code)
        return
    stand.expect_sound(before, verb, None if code not in (0, 1) else code)


def at_phase(stand, verb, options, before, phase, who):
    for seconds in HANG_S:
        stand.prepare(before)
        known = shims(before)
        operation = stand.begin(verb, *options, "--timeout", seconds, env={"STASIS_FAULT": f"{phase}:hang"})

        def ended():
            return operation.process.poll() is not None
        wait_until(lambda: stand.has_begun(phase.split(":")[0]) or ended(), 60, f"{phase} does not begin")
        victim = wait_until(lambda: find(stand, who, operation, known) or ended(), 60, f"there is no {who}")
        if phase.endswith(":after") and not ended():
            # The hang begins after all work is done; from outside only inactivity is visible.
            wait_until_quiet(stand, victim)
        if not ended() and processes.is_alive(victim):
            processes.end(victim)
            settle(stand, operation, before, verb, who)
            return
        stand.settle(before, verb, operation.wait())
    demand(False, f"no {who} was there at {phase}, in {seconds} s: {operation}")


def wait_until_quiet(stand, pid):
    """Waits until the process has used no CPU time for a tenth of a second."""
    import time

    def ticks():
        found = processes.told(pid, "stat")
        return found and found.rsplit(b")", 1)[1].split()[11:13]

    seen, since = ticks(), time.monotonic()

    def quiet():
        nonlocal seen, since
        now = ticks()
        if now != seen:
            seen, since = now, time.monotonic()
        return time.monotonic() - since > 0.1
    wait_until(quiet, 60, "it does not become idle")


def on_sight(stand, verb, options, before, sight, who):
    stand.prepare(before)
    known = shims(before)
    operation = stand.begin(verb, *options)
    wait_until(lambda: find(stand, sight, operation, known) or operation.process.poll() is not None, 60,
               f"no {sight} appears")
    victim = find(stand, who, operation, known)
    if victim is not None:
        processes.end(victim)
    settle_any(stand, operation, before, verb, who)


def settle_any(stand, operation, before, verb, who):
    """If the kill came too late, the operation has completed."""
    code = operation.wait().code
    if code != 0:
        settle(stand, operation, before, verb, who if code == -signal.SIGKILL else "")
        return
    stand.expect_sound(before, verb, None)


def cases(stand, table):
    if table == "kill-hip":
        stand.use_hip()
        return HIP_AT_PHASE, []
    at = AT_PHASE + (MORE_AT_PHASE if stand.every else [])
    sight = ON_SIGHT + (MORE_ON_SIGHT if stand.every else [])
    return ([case for case in rows if (case[-1] == SHIM) == (table == "kill-shim")] for rows in (at, sight))


def run(stand: Stand, table):
    at, sight = cases(stand, table)
    for verb, options, before, phase, who in at:
        name = " ".join([verb, *options, f"({before})", "at", phase, "kill", who])
        stand.case(name, at_phase, verb, options, before, phase, who)
    for verb, options, before, seen, who in sight:
        name = " ".join([verb, *options, f"({before})", "on sight of", seen, "kill", who])
        stand.case(name, on_sight, verb, options, before, seen, who)


if __name__ == "__main__":
    sys.exit(main(["kill", "kill-shim", "kill-hip"], run))
