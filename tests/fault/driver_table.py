"""driver_table.py --build DIR [--all] driver-VERB: driver calls that fail, hang or die, in the
helper or in the program.

softgpu injects the faults (softgpu/README.md, "faults"): without a prefix in the helper, with
`target:` in the program.
"""

import sys

from stand import Stand, demand, main

RUNS_ON = "--leave-running"
# Command with options, state before, driver call.
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
# The fault of the first call, and the options of the command.
ACTIONS = {
    "fail(999)": [],
    "fail(2)": [],
    "hang(3400)": ["--timeout", "3"],  # ends after the command's deadline
    "hang": ["--timeout", "3"],
    "die": [],
    "always fail(2)": [],
}
# Without --all every call fails and dies, and these cases are added: each way in which a hang ends,
# and the driver's error for insufficient memory.
SOME = {
    ("suspend", "", "cuCheckpointProcessCheckpoint", "hang"),
    ("suspend", "target:", "cuCheckpointProcessLock", "hang"),
    ("suspend", "target:", "cuCheckpointProcessCheckpoint", "hang(3400)"),
    ("resume", "target:", "cuCheckpointProcessRestore", "hang"),
    ("resume", "", "cuCheckpointProcessRestore", "hang(3400)"),
    ("resume", "target:", "cuCheckpointProcessRestore", "fail(2)"),
    (f"dump {RUNS_ON}", "target:", "cuCheckpointProcessRestore", "always fail(2)"),
    ("restore", "target:", "cuCheckpointProcessRestore", "hang(3400)"),
}


def strike(stand, what, before, call, side, action):
    verb, *options = what.split()
    stand.prepare(before)
    always = action.startswith("always ")
    rule = f"{side}{call}={action.removeprefix('always ')}" if always else f"{side}{call}:1={action}"
    stand.world.gpu_fault(rule + "\n")
    try:
        # The hang must end before the driver is considered idle (a quarter of this setting), even
        # on a busy machine where the call is late.
        env = {"STASIS_SETTLE_TIMEOUT_S": "10"} if action.startswith("hang(") else None
        command = stand.operate(verb, *options, *ACTIONS[action], env=env)
    finally:
        stand.world.gpu_fault("")
    if command.code == 0 and RUNS_ON in options and action != "die":
        # The roll-back is retried as often as its time limit allows.
        stand.expect_sound(before, verb, None)
        return
    demand(command.code in (1, 5, 6), f"exit code {command.code}:\n{command}")
    demand(any(word in command.err for word in ("lock", "checkpoint", "restore")),
           f"the message does not say what was being done:\n{command}")
    # A lock that hangs has changed nothing yet; after any other call the program's driver hangs
    # forever.
    lost = side and (action == "die" or (action == "hang" and not call.endswith("Lock")))
    if RUNS_ON in options:
        # If the program did not get its GPU back, at least the image exists.
        demand("gpu-return" in command.err and stand.image_exists(), f"the image is lost too:\n{command}")
        stand.world.stasis("image", "verify", stand.image_folder())
    if lost and verb != "restore":
        # The error reports the lost program, and nothing else is damaged.
        stand.expect_lost(command)
        return
    if command.code == 6:
        stand.recover()
    stand.expect_sound(before, verb, 1 if command.code != 6 else None)
    if side and action == "hang":
        # The program runs, but its driver will never answer a checkpoint call again.
        stand.end_program()


def run(stand: Stand, table):
    for verb, before, call in CALLS:
        if verb.split()[0] not in table:
            continue
        for side in ("", "target:"):
            for action in ACTIONS:
                # A driver that hangs forever also blocks the roll-back, which takes its whole time
                # limit.
                if action in ("hang", "fail(2)") and verb not in ("suspend", "resume"):
                    continue
                if action.startswith("always") and RUNS_ON not in verb:
                    continue
                if not (stand.every or action in ("fail(999)", "die") or (verb, side, call, action) in SOME):
                    continue
                stand.case(f"{verb}: {side}{call} {action}", strike, verb, before, call, side, action)


if __name__ == "__main__":
    sys.exit(main(["driver-" + verb for verb in ("suspend", "resume", "dump", "restore")], run))
