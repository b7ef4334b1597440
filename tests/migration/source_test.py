#!/usr/bin/env python3
"""The source of a migration is killed, or loses CRIU or the connection.

The program runs on exactly one of the hosts afterwards, with the right memory, or it runs nowhere and its complete
image is named.
"""

import os
import signal
import sys

from hosts import await_journal, await_rounds, clear, end, expect_only, images_of, run_test, settle, start
import processes
from processes import wait_until
import schemas
from world import demand

# Where the source can be killed, and where the program runs then.
PHASES = [("hand-over", "before", "a"), ("stop", "after", "a"), ("switch", "after", "b")]
MORE_PHASES = [("describe", "before", "a"), ("commit", "after", "a"), ("hand-over", "after", "a"), ("switch", "before", "a"),
               ("await-end", "before", "b")]  # with --all


def source_killed(world, a, b):
    for phase, when, runs_on in PHASES + (MORE_PHASES if world.every else []):
        print(f"{phase} {when}", flush=True)
        start(a)
        a("migrate", "job", "b", "--rounds", "1", env={"STASIS_FAULT": f"{phase}:{when}:die"}, expect=-9)
        settle(a, b)
        # Only the newest image of the migration stays, because it may be the only copy of the program.
        wait_until(lambda: a("image", "gc", expect=None) and len(a.images()) <= 1, 30,
                   lambda: f"{a.name} keeps {a.images()}")  # noqa: B023
        expect_only(*((a, b) if runs_on == "a" else (b, a)))
        clear(a, b)


def killed_with_repository(world, a, b):
    """The next gc of the repository on this host, or the next migration, removes the images there, except the newest if
    it is the only copy."""
    fleet = world.folder / "fleet"
    fleet.mkdir()
    for host in (a, b):
        host("repo", "add", "fleet", fleet, "--plain")

    def kill():
        a("migrate", "job", "b", "--via", "fleet", "--rounds", "1", env={"STASIS_FAULT": "hand-over:after:die"}, expect=-9)
        settle(a, b)
        expect_only(a, b)
        left = images_of(a, "fleet")
        demand(len(left) == 2, f"the images are {left}")
        b("image", "gc", "-R", "fleet")
        demand(images_of(a, "fleet") == left, "another host deleted images of a migration")
        return left

    start(a)
    first, last = kill()
    a("image", "gc")
    a("image", "delete", *a.images())
    done = a("image", "gc", "-R", "fleet")
    demand(f"removed fleet/{first}" in done.out, f"{done}")
    demand(f"`stasis image delete {last} -R fleet` deletes it" in done.out, f"{done}")
    demand(images_of(a, "fleet") == [last], f"the images are {images_of(a, 'fleet')}")
    a("image", "delete", last, "-R", "fleet")
    left = kill()
    done = a("migrate", "job", "b", "--via", "fleet")
    demand("deleted from fleet" in done.out and all(name in done.out for name in left), f"{done}")
    demand(not images_of(a, "fleet"), "images are left in the repository")
    expect_only(b, a)
    clear(a, b)


def killed_while_switching(world, a, b):
    """The source is killed after it has allowed the target to run the program, and before it gets the answer."""
    start(a)
    hold = world.folder / "hold"
    hold.touch()
    b.set_receiver(STASIS_FAULT=f"adopt:before:hold={hold}")
    moving = a.begin("migrate", "job", "b", "--rounds", "0")
    await_journal(a, '"elsewhere":1')
    b.set_receiver()
    os.kill(processes.children(moving.pid)[0], signal.SIGKILL)
    hold.unlink()
    moving.wait()
    settle(a, b)
    expect_only(b, a)
    for words in (("ps", "-a"), ("inspect", "job"), ("checkpoints", "job")):
        demand("perhaps moved to b/job" in a(*words).out, f"{words} says where it is for certain")
    for words in (("inspect", "job"), ("checkpoints", "job")):
        document = a(*words, "--json").json()
        demand(document["moved_to"] is None and document["perhaps_moved_to"] == "b/job", f"{document}")
        if schemas.is_able():
            schemas.compare(words[0], document)
    demand("was perhaps moved to b/job" in a("restore", "job", expect=7).err, "a restore does not say where it may run")
    clear(a, b)


def program_killed(world, a, b):
    """The program ends before its last image is complete, for example because memory is short: the newest image of the
    rounds is kept."""
    start(a)
    hold = world.folder / "hold"
    hold.touch()
    moving = a.begin("migrate", "job", "b", "--rounds", "1", env={"STASIS_FAULT": f"describe:before:hold={hold}"})
    await_journal(a, '"phase":"describe"')
    hold.unlink()
    await_journal(a, '"phase":"gpu-return"')
    hold.touch()
    wait_until(lambda: entries_with(a, "describe") and not entries_with(a, "gpu-return"), 60, "there is no last dump")
    os.kill(world.named("vector")[0], signal.SIGKILL)
    hold.unlink()
    done = moving.wait()
    settle(a, b)
    left = a.images()
    demand(len(left) == 1 and left[0].endswith("-1"), f"a keeps {left}")
    demand(done.code != 0 and f"The image {left[0]} was kept" in done.err, f"{done}")
    demand(not b.runs("job"), "it runs on b")
    a("restore", left[0], "--job", "again")
    await_rounds(a, "again")
    end(a, name="again")
    clear(a, b)


def entries_with(host, phase):
    """Returns the journal entries of operations that have begun such a phase."""
    texts = [processes.text_of(path) for path in (host.state / "run" / "journal").glob("*.journal")]
    return [text for text in texts if f'"phase":"{phase}"' in text]


def criu_killed(world, a, b):
    """The program runs again while its image is sent, so the sent image is too old."""
    start(a)
    hold = world.folder / "hold"
    hold.touch()
    moving = a.begin("migrate", "job", "b", "--rounds", "0", env={"STASIS_FAULT": f"hand-over:before:hold={hold}"})
    await_journal(a, '"phase":"hand-over"')
    for pid in world.named("criu"):
        os.kill(pid, signal.SIGKILL)
    hold.unlink()
    done = moving.wait()
    settle(a, b)
    demand(done.code == 1 and "CRIU no longer holds process" in done.err, f"{done}")
    expect_only(a, b)
    clear(a, b)


def connection_cut(world, a, b):
    """The connection is cut while the program is copied, and while it waits for the switch."""
    for phase in ("hand-over", "switch"):
        start(a)
        hold = world.folder / "hold"
        hold.touch()
        moving = a.begin("migrate", "job", "b", "--rounds", "0", env={"STASIS_FAULT": f"{phase}:before:hold={hold}"})
        await_journal(a, f'"phase":"{phase}"')
        b.server.cut()
        hold.unlink()
        done = moving.wait()
        settle(a, b)
        b.server.mend()
        if phase == "hand-over":
            demand(done.code == 1, f"{done}")
            expect_only(a, b)
        else:
            demand(done.code == 6, f"{done}")
            demand(not a.runs("job") and not b.runs("job"), "it runs")
        clear(a, b)


def run(world, a, b):
    for test in (source_killed, killed_with_repository, killed_while_switching, program_killed, criu_killed,
                 connection_cut):
        print(test.__name__, flush=True)
        test(world, a, b)


if __name__ == "__main__":
    sys.exit(run_test(run))
