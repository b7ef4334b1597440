"""fault_table.py --build DIR [--all] PLAN: makes every phase of a plan fail, hang and die, before
it has done anything and after it has done everything.

The phases come from `--dry-run --json`, so new ones are covered automatically. With --all every
phase gets every fault. Otherwise:

- A phase hangs twice in each plan of MAIN: where most must be rolled back, and after the commit.
  For the plan's runner a hang is a failure at the deadline, so other hangs would repeat the
  failures.
- A phase of MAIN gets three faults; one of the other plans, which share most phases with MAIN, gets
  one of two, in turn.

After each case the program is unchanged with intact data, or the image is complete and restores;
nothing is left over; the message names phase and cause; the exit code is the documented one.
"""

import sys

from stand import Stand, demand, main
from file_systems import file_system

WHENS = ["before", "after"]
# The faults, and words that the error must contain.
HOWS = {
    "fail": ["a fault was injected"],
    "hang": ["hung until its deadline"],
    "die": [],
}
# Command, options, initial state of the program; see Stand.
PLANS = {
    "suspend": ("suspend", [], "running"),
    "resume": ("resume", [], "suspended"),
    "dump": ("dump", [], "running"),
    "dump-leave-running": ("dump", ["--leave-running"], "running"),
    "dump-suspended": ("dump", [], "suspended"),
    "restore": ("restore", [], "dumped"),
    "restore-apart": ("restore", ["--new-pidns"], "dumped"),
    "suspend-keep": ("suspend", ["--keep-context"], "running"),
    "resume-kept": ("resume", [], "kept"),
    "suspend-kept": ("suspend", [], "kept"),
    "dump-kept": ("dump", ["--leave-running"], "kept"),
}


MAIN = {"suspend", "resume", "dump", "restore"}
# One failure that is rolled back at once, and one that another command must roll back. In MAIN also
# the failure of a phase that has done everything.
TWO_WAYS = [("before", "fail"), ("after", "die")]
THREE_WAYS = [*TWO_WAYS, ("after", "fail")]
# Plans without hangs, even with --all. Their phases hang in the plans above, where they are rolled back in the same
# way.
NO_HANGS = {"suspend-keep", "resume-kept", "suspend-kept", "restore-apart"}

# Suffixes of a plan's name. The same without an agent, where the driver saves all GPU memory:
OPAQUE = "-opaque"
# The same with a program that uses HIP, whose context is always kept:
HIP = "-hip"
HIP_PLANS = {
    "suspend": ("suspend", [], "running"),
    "resume": ("resume", [], "kept"),
    "dump": ("dump", [], "running"),
    "dump-leave-running": ("dump", ["--leave-running"], "running"),
}

# The same with GPU data that goes through files in the store, because it exceeds the limit for host memory:
FILES = "-files"
FILES_PLANS = {
    "dump": ("dump", ["--arena-limit", "64M"], "running"),
    "dump-leave-running": ("dump", ["--leave-running", "--arena-limit", "64M"], "running"),
}

# On a busy machine an undisturbed phase may exceed a short deadline too; then a longer one is
# tried.
HANG_S = ["1", "6"]


def operate(stand, verb, options, before, phase, when, how):
    stand.prepare(before)
    env = {"STASIS_FAULT": f"{phase}:{when}:{how}"}
    if how != "hang":
        return stand.operate(verb, *options, env=env)
    for seconds in HANG_S:
        command = stand.operate(verb, *options, "--timeout", seconds, env=env)
        if "hung until" in command.err:
            break
        stand.settle(before, verb, command)
        stand.prepare(before)  # the program may still run
    return command


def strike(stand, verb, options, before, phase, when, how):
    command = operate(stand, verb, options, before, phase, when, how)
    words = HOWS[how]
    if how == "die":
        demand(command.code == -9, f"it was to die:\n{command}")
        # The message gives the program's state, which must be correct.
        undone = "undone: the program is as it was before" in stand.recover().out
        stand.expect_sound(before, verb, 1 if undone and not stand.image_exists() else None)
        return
    demand(command.code in (1, 6), f"exit code {command.code}:\n{command}")
    if command.code == 1:
        stand.last_undone = phase
    for word in [phase, *words]:
        demand(word in command.err, f"the message lacks '{word}':\n{command}")
    stand.settle(before, verb, command)


def ways(stand, name):
    """Returns the faults for each phase of the plan."""
    if not stand.every:
        return THREE_WAYS if name in MAIN else TWO_WAYS
    return [(when, how) for when in WHENS for how in HOWS if how != "hang" or name not in NO_HANGS]


def run(stand: Stand, name):
    if not name.endswith(FILES):
        run_table(stand, name)
        return
    stand.memory = "72M"
    with file_system(stand.world, stand.world.folder / "store-disk", 1 << 30) as stand.store:
        run_table(stand, name)
        stand.end_program()


def run_table(stand: Stand, name):
    plan = name.removesuffix(OPAQUE).removesuffix(HIP).removesuffix(FILES)
    stand.world.agent = not name.endswith(OPAQUE)
    if name.endswith(HIP):
        stand.use_hip()
    plans = HIP_PLANS if name.endswith(HIP) else FILES_PLANS if name.endswith(FILES) else PLANS
    verb, options, before = plans[plan]
    stand.prepare(before)
    planned = stand.operate(verb, *options, "--dry-run", "--json").json()["planned_phases"]
    demand(len(planned) >= 3, f"only {planned} are planned")
    print(f"{name}: {' '.join(planned)}")
    stand.last_undone = planned[0]
    strikes = ways(stand, name)
    for number, phase in enumerate(planned):
        in_turn = not stand.every and name not in MAIN
        for when, how in [strikes[number % len(strikes)]] if in_turn else strikes:
            stand.case(f"{phase} {when} {how}", strike, verb, options, before, phase, when, how)
    if ("after", "fail") not in strikes:
        stand.case(f"{planned[-1]} after fail", strike, verb, options, before, planned[-1], "after", "fail")
    if name in MAIN and not stand.every:
        for phase, when in ((stand.last_undone, "before"), (planned[-1], "after")):
            stand.case(f"{phase} {when} hang", strike, verb, options, before, phase, when, "hang")
    if name == "dump" + FILES:
        # Only the files have the data of a program that CRIU has not saved yet, or not to the end.
        for phase in ("image-writer", "cpu-write", "commit"):
            stand.case(f"{phase} before die, in files", strike, verb, options, before, phase, "before", "die")
    # Both outcomes must have occurred; otherwise this table proves nothing.
    demand(stand.seen >= {1, 6}, f"exit codes seen: {stand.seen}")


if __name__ == "__main__":
    sys.exit(main([*PLANS, *(name + OPAQUE for name in PLANS), *(name + HIP for name in HIP_PLANS),
                   *(name + FILES for name in FILES_PLANS)], run))
