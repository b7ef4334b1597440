#!/usr/bin/env python3
"""The target of a migration fails or is killed.

The program continues on the source, with the right memory. If it is unknown whether it runs on the target, it runs
nowhere, and its complete image is named.
"""

import re
import sys

from hosts import await_rounds, clear, end, expect_only, run_test, settle, start
from world import demand

# Where the target can fail or be killed, with the faults that are tested without --all.
PHASES = [("load-room", "before", ["fail"]), ("cpu-restore", "before", ["die"]), ("data-return", "before", ["fail"]),
          ("await-switch", "before", ["die"]), ("await-switch", "after", ["fail", "die"]), ("adopt", "before", ["fail", "die"])]


def ending_fails(a, b):
    """The source cannot end the program after the target was lost: the error does not claim that it did."""
    start(a)
    b.set_receiver(STASIS_FAULT="adopt:before:die")
    done = a("migrate", "job", "b", "--rounds", "0", env={"STASIS_FAULT": "await-end:before:fail"}, expect=6)
    b.set_receiver()
    settle(a, b)
    demand("Ending the program here failed" in done.err and "was ended here" not in done.err, f"{done}")
    demand(not a.runs("job") and not b.runs("job"), "it runs")
    clear(a, b)


def run(world, a, b):
    ending_fails(a, b)
    for phase, when, ways in PHASES:
        for how in ["fail", "die"] if world.every else ways:
            print(f"{phase} {when} {how}", flush=True)
            start(a)
            b.set_receiver(STASIS_FAULT=f"{phase}:{when}:{how}")
            done = a("migrate", "job", "b", "--rounds", "1", expect=None)
            b.set_receiver()
            settle(a, b)
            unknown = how == "die" and (phase, when) in (("await-switch", "after"), ("adopt", "before"))
            demand(done.code == (6 if unknown else 1), f"{phase}:{when}:{how}: {done}")
            if unknown:
                demand("it is unknown whether the program is running on b" in done.err, f"{done}")
                demand(not a.runs("job") and not b.runs("job"), f"{phase}: it runs")
                image = re.search(r"its image (\S+) is complete", done.err).group(1)
                a("restore", image, "--job", "again")
                await_rounds(a, "again")
                end(a, name="again")
            else:
                expect_only(a, b)
            clear(a, b)


if __name__ == "__main__":
    sys.exit(run_test(run))
