"""no_start_table.py --build DIR [--all] VERB: no more threads and processes can be started, either
from the Nth start on or for only the Nth, in the command, a mover or the device helper, until all
of a command's starts succeed. With --all for each N; otherwise for the first, and for some others
that alternate between the two ways.

The program is a tree of four processes on two GPUs, to cover every step that is done for several of
them. After each case the program is unchanged, or the operation succeeded with fewer threads.
`recover` may be needed if nothing could be started for the roll-back; the message then says so.
"""

import functools
import sys

import tree_table
from stand import demand, main

VERBS = {"suspend": "running", "resume": "suspended", "dump": "running", "restore": "dumped"}
PROGRAMS = ["stasis", "stasis-mover", "stasis-device-helper"]
HOW_LONG = {"from then on": "+", "once": ""}
# An upper bound for the starts of a command.
MOST_STARTS = 200
STEP = 61
# Words in the message if Stasis met the limit, with advice; or the driver's error.
REASON, ADVICE, DRIVER = "Resource temporarily unavailable", "ulimit -u", "CUDA_ERROR_OPERATING_SYSTEM"


def strike(stand, verb, before, program, number, how_long, seen):
    stand.prepare(before)
    note = stand.world.folder / "failed-starts"
    note.unlink(missing_ok=True)
    library = stand.world.build / "tests" / "libfailing_start.so"
    # A helper that cannot start anything delays the roll-back for this time.
    undo_s = "1" if program == "stasis-device-helper" else stand.world.env["STASIS_UNDO_TIMEOUT_S"]
    command = stand.operate(verb, env={"LD_PRELOAD": str(library), "FAILING_START_NOTE": str(note),
                                       "STASIS_UNDO_TIMEOUT_S": undo_s,
                                       "FAILING_START": f"{program}:{number}{HOW_LONG[how_long]}"})
    demand(command.code in (0, 1, 5, 6, 7), f"exit code {command.code}:\n{command}")
    if command.code != 0:
        demand(REASON in command.err and ADVICE in command.err or DRIVER in command.err,
               f"the message does not say why, or what to do:\n{command}")
    if not note.exists():
        demand(command.code == 0, f"nothing failed, and the exit code is {command.code}:\n{command}")
        seen.add("all started")
    stand.settle(before, verb, command)


def run(stand, verb):
    for program in PROGRAMS:
        for turn, how_long in enumerate(HOW_LONG):
            seen = set()
            some = (1, *range(2, MOST_STARTS, STEP)[turn::len(HOW_LONG)])
            for number in range(1, MOST_STARTS) if stand.every else some:
                stand.case(f"{program}: start {number} fails {how_long}", strike, verb, VERBS[verb], program, number,
                           how_long, seen)
                if seen:
                    break


if __name__ == "__main__":
    sys.exit(main(VERBS, run, functools.partial(tree_table.TreeStand, children=4)))
