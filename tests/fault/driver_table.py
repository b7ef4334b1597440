"""driver_table.py --build DIR driver-VERB: calls of the driver that fail, hang or die, on either side.

softgpu is told to do so (softgpu/README.md, "faults"): without a prefix in our helper, with `target:`
in the program.
"""

import sys

from stand import Stand, demand, main

RUNS_ON = "--leave-running"
# Verb and what belongs to it, state before, the call.
CALLS = [
    ("suspend", "running", "cuCheckpointProcessLock"),
    ("suspend", "running", "cuCheckpointProcessCheckpoint"),
    ("resume", "suspended", "cuCheckpointProcessRestore"),
    ("resume", "suspended", "cuCheckpointProcessUnlock"),
    ("dump", "running", "cuCheckpointProcessLock"),
    ("dump", "running", "cuCheckpointProcessCheckpoint"),
    (f"dump {RUNS_ON}", "running", "cuCheckpointProcessRestore"),
    (f"dump {RUNS_ON}", "running", "cuCheckpointProcessUnlock"),
    ("restore", "dumped", "cuCheckpointProcessRestore"),
    ("restore", "dumped", "cuCheckpointProcessUnlock"),
]
# What happens at the first call: more options, and whether the program can survive it.
# A hang that ends does so after our deadline, and before we believe the driver to be at rest (a quarter of
# STASIS_SETTLE_TIMEOUT_S). On a busy machine the call comes late.
ACTIONS = {
    "fail(999)": [],
    "fail(2)": [],
    "hang(3400)": ["--timeout", "3"],
    "hang": ["--timeout", "3"],
    "die": [],
    "always fail(2)": [],
}


def strike(stand, what, before, call, side, action):
    verb, *options = what.split()
    stand.prepare(before)
    always = action.startswith("always ")
    rule = f"{side}{call}={action.removeprefix('always ')}" if always else f"{side}{call}:1={action}"
    stand.world.gpu_fault(rule + "\n")
    try:
        command = stand.operate(verb, *options, *ACTIONS[action], env={"STASIS_SETTLE_TIMEOUT_S": "10"})
    finally:
        stand.world.gpu_fault("")
    if command.code == 0 and RUNS_ON in options and action != "die":
        # The way back is tried as often as its time allows.
        stand.expect_sound(before, verb, None)
        return
    demand(command.code in (1, 5, 6), f"exit code {command.code}:\n{command}")
    demand(any(word in command.err for word in ("lock", "checkpoint", "restore")),
           f"the message does not say what was being done:\n{command}")
    # A lock that hangs has done nothing yet; after any other the program's own driver hangs for ever.
    lost = side and (action == "die" or (action == "hang" and not call.endswith("Lock")))
    if RUNS_ON in options:
        # Of a program that did not get its GPU back there is at least the image.
        demand("gpu-return" in command.err and stand.image_exists(), f"the image is lost too:\n{command}")
        stand.world.stasis("image", "verify", stand.image_folder())
    if lost and verb != "restore":
        # That is said plainly, and nothing else is harmed.
        stand.expect_lost(command)
        return
    if command.code == 6:
        stand.recover()
    stand.expect_sound(before, verb, 1 if command.code != 6 else None)
    if side and action == "hang":
        # It runs, but its driver will never answer a checkpoint call again.
        stand.end_program()


def run(stand: Stand, table):
    for verb, before, call in CALLS:
        if verb.split()[0] not in table:
            continue
        for side in ("", "target:"):
            for action in ACTIONS:
                # A driver that hangs for ever also hangs the undo, which takes its time to say so.
                if action in ("hang", "fail(2)") and verb not in ("suspend", "resume"):
                    continue
                if action.startswith("always") and RUNS_ON not in verb:
                    continue
                stand.case(f"{verb}: {side}{call} {action}", strike, verb, before, call, side, action)


if __name__ == "__main__":
    sys.exit(main(["driver-" + verb for verb in ("suspend", "resume", "dump", "restore")], run))
