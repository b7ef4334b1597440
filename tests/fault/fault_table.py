"""fault_table.py --build DIR PLAN: every phase of a plan made to fail, to hang and to die, before it has
done anything and after it has done all.

The phases are asked for (`--dry-run --json`), so a new one is covered without anybody adding it here.
After each case: the program is as it was and its data intact, or the image is complete and restores;
nothing is left over; the message names phase and cause; the exit code is the one of the contract.
"""

import sys

from stand import Stand, demand, main

WHENS = ["before", "after"]
# How the phase is struck, and the words that the error must hold.
HOWS = {
    "fail": ["a fault was injected"],
    "hang": ["hung until its deadline"],
    "die": [],
}
# Verb, options, the state that the program is in before; see Stand.
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


# Their phases hang in the tables above, and are undone there in the same way.
NO_HANGS = {"suspend-keep", "resume-kept", "suspend-kept", "restore-apart"}

# Appended to a plan's name: the same without an agent, where the driver carries everything.
OPAQUE = "-opaque"

# On a busy machine a sound phase may pass a short deadline too: then a longer one is tried.
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
        stand.prepare(before)  # which may have left it running
    return command


def strike(stand, verb, options, before, phase, when, how):
    command = operate(stand, verb, options, before, phase, when, how)
    words = HOWS[how]
    if how == "die":
        demand(command.code == -9, f"it was to die:\n{command}")
        # It says where it has brought the program, and that is where it is.
        undone = "undone: the program is as it was before" in stand.recover().out
        stand.expect_sound(before, verb, 1 if undone and not stand.image_exists() else None)
        return
    demand(command.code in (1, 6), f"exit code {command.code}:\n{command}")
    for word in [phase, *words]:
        demand(word in command.err, f"the message does not say '{word}':\n{command}")
    stand.settle(before, verb, command)


def run(stand: Stand, name):
    plan = name.removesuffix(OPAQUE)
    stand.world.agent = plan == name
    verb, options, before = PLANS[plan]
    stand.prepare(before)
    planned = stand.operate(verb, *options, "--dry-run", "--json").json()["planned_phases"]
    demand(len(planned) >= 3, f"only {planned} are planned")
    print(f"{name}: {' '.join(planned)}")
    for phase in planned:
        for when in WHENS:
            for how in HOWS:
                if how == "hang" and name in NO_HANGS:
                    continue
                stand.case(f"{phase} {when} {how}", strike, verb, options, before, phase, when, how)
    # Both ends of the plan were seen, or this table proves nothing.
    demand(stand.seen >= {1, 6}, f"exit codes seen: {stand.seen}")


if __name__ == "__main__":
    sys.exit(main([*PLANS, *(name + OPAQUE for name in PLANS)], run))
