#!/usr/bin/env python3
"""The source or the target of a migration through a repository is killed in step 5, in which the program changes hosts.

The program runs on exactly one of the hosts afterwards, or it runs nowhere and its complete image is named. Nothing is
left in the repository.
"""

import os
import re
import signal
import sys
import time

from hosts import (await_journal, await_rounds, clear, end, expect_no_rest, expect_only, images_of, run_test,
                   settle, start)
import processes
from world import demand

VIA = ("migrate", "job", "b", "--via", "fleet", "--rounds", "1")
# Longer than a request of a killed migration may be on its way (kLatePush in src/repository/sent_images.h).
LATE_S = 11 * 60


def begin_killing(world, a, b):
    """Begins a migration and kills its source when that has let the program run on b, and has no answer yet."""
    hold = world.folder / "hold"
    hold.touch()
    b.set_receiver(STASIS_FAULT=f"adopt:before:hold={hold}")
    moving = a.begin(*VIA)
    await_journal(a, '"elsewhere":1')
    os.kill(processes.children(moving.pid)[0], signal.SIGKILL)
    hold.unlink()
    b.set_receiver()
    demand(moving.wait().code == -9, f"{moving}")


def expect_nothing_left(a, b):
    """Removes what documented commands remove; nothing else may be left."""
    a("image", "gc", "-R", "fleet")
    demand(not images_of(a, "fleet"), lambda: f"the repository keeps {images_of(a, 'fleet')}")
    for note in (a.state / "data" / "images").glob(".*.sent-*/abandoned"):
        then = time.time() - LATE_S
        os.utime(note, (then, then))
    a("image", "gc", "-R", "fleet")
    clear(a, b)
    expect_no_rest(a, b)


def source_killed(world, a, b):
    """The program is stopped here until the next command ends or continues it."""
    for fault, runs_on in (("switch:before:die", a), (None, b), ("switch:after:die", b)):
        print(f"source {fault}", flush=True)
        start(a)
        if fault is None:
            begin_killing(world, a, b)
        else:
            a(*VIA, env={"STASIS_FAULT": fault}, expect=-9)
        if runs_on is b:
            before = len(a.rounds("job"))
            await_rounds(b, "job")
            demand(len(a.rounds("job")) == before, "it runs on both hosts")
        settle(a, b)
        expect_only(runs_on, b if runs_on is a else a)
        expect_nothing_left(a, b)


def target_killed(a, b):
    for fault, runs_on in (("await-switch:after:die", None), ("adopt:before:die", None), ("adopt:after:die", b)):
        print(f"target {fault}", flush=True)
        start(a)
        b.set_receiver(STASIS_FAULT=fault)
        done = a(*VIA, expect=6)
        b.set_receiver()
        demand("it is unknown whether the program is running on b" in done.err, f"{done}")
        settle(a, b)
        demand(not a.runs("job"), "it runs on a too")
        image = re.search(r"its image (\S+) is complete", done.err).group(1)
        if runs_on is b:
            expect_only(b, a)
        else:
            demand(not b.runs("job"), "it runs on b")
            a("restore", image, "--job", "again")
            await_rounds(a, "again")
            end(a, name="again")
        expect_nothing_left(a, b)


def run(world, a, b):
    fleet = world.folder / "fleet"
    fleet.mkdir()
    for host in (a, b):
        host("repo", "add", "fleet", fleet, "--plain")
    source_killed(world, a, b)
    target_killed(a, b)


if __name__ == "__main__":
    sys.exit(run_test(run))
