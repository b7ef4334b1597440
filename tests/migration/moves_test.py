#!/usr/bin/env python3
"""A program moves between two hosts and back; a move that cannot work is refused and changes nothing."""

import shutil
import sys

from hosts import (Host, await_journal, await_rounds, clear, end, expect_no_rest, expect_only, images_of, run_test,
                   settle, start)
import processes
from processes import wait_until
import schemas
from world import demand


def there_and_back(world, a, b):
    start(a, memory="2G" if world.every else "64M")
    pauses = []
    for turn in range(10 if world.every else 3):
        here, there = (a, b) if turn % 2 == 0 else (b, a)
        result = here("migrate", "job", there.name, "--json").json()
        demand(result["migration"]["host"] == there.name, f"{result['migration']}")
        if schemas.is_able():
            schemas.compare("migrate", result)
        rounds = result["migration"]["rounds"]
        demand(len(rounds) >= 2, f"the program was not copied while it ran: {rounds}")
        demand(rounds[-1]["known_bytes"] > rounds[0]["sent_bytes"] // 2, f"the last round sent everything again: {rounds}")
        demand(rounds[0]["load_s"] > 0 and rounds[-1]["load_s"] == 0, f"GPU memory was not loaded ahead: {rounds}")
        pauses.append(result["pause_s"])
        demand(0 < result["pause_s"] < result["total_s"] + 1, f"the pause is {result['pause_s']}")
        expect_only(there, here)
        gone = here.job("job")
        demand(gone["state"] == "dumped" and gone["moved_to"] == f"{there.name}/job", f"the job is {gone}")
        for words in (("ps", "-a"), ("inspect", "job"), ("checkpoints", "job")):
            demand(f"moved to {there.name}/job" in here(*words).out, f"{words} does not say where it is")
        demand(f"ssh://{there.name}/job" in here("inspect", "job").out, here("inspect", "job").out)
        demand(f"was moved to ssh://{there.name}/job" in here("restore", "job", expect=7).err, "a restore does not say where it runs")
        expect_no_rest(a, b)
        here("delete", "job")
    end(a, b)


def without_rounds(a, b):
    """Moves without rounds, also to another job name."""
    start(a)
    result = a("migrate", "job", "b", "--rounds", "0", "--job", "moved", "--json").json()
    demand(len(result["migration"]["rounds"]) == 1, f"{result['migration']}")
    await_rounds(b, "moved")
    demand(not a.runs("job"), "it runs on a too")
    a("delete", "job")
    end(b, name="moved")


def via_repository(world, a, b):
    """Images go through an encrypted repository, which holds none of them afterwards."""
    fleet = world.folder / "fleet"
    fleet.mkdir()
    a("key", "create")
    (b.state / "data").mkdir(exist_ok=True)
    shutil.copy(a.state / "data" / "stasis-key", b.state / "data" / "stasis-key")
    for host in (a, b):
        host("repo", "add", "fleet", fleet)
    start(a, memory="64M")
    result = a("migrate", "job", "b", "--via", "fleet", "--json").json()
    demand(result["migration"]["via"] == "fleet", f"{result['migration']}")
    demand(result["migration"]["rounds"][-1]["known_bytes"] > 32 << 20, f"{result['migration']}")
    expect_only(b, a)
    demand(not images_of(a, "fleet"), "images are left in the repository")
    expect_no_rest(a, b)
    a("delete", "job")
    done = b("migrate", "job", "a", "--via", str(fleet), expect=2)
    demand("needs the name of a repository" in done.err, f"{done}")
    # Give another repository the same name.
    other = world.folder / "other"
    other.mkdir()
    a("repo", "remove", "fleet")
    a("repo", "add", "fleet", other)
    done = b("migrate", "job", "a", "--via", "fleet", expect=None)
    demand(done.code == 7 and "is not the same on this host" in done.err, f"{done}")
    expect_only(b, a)
    end(a, b)


def interrupted(world, a, b, there=True):
    """Ctrl-C while the program is stopped and the other host restores its last image from the repository, or when it
    has restored it."""
    # via_repository() has left `a` with another repository of this name.
    a("repo", "remove", "fleet")
    a("repo", "add", "fleet", world.folder / "fleet")
    start(a)
    hold = world.folder / "hold"
    hold.touch()
    if there:
        b.set_receiver(STASIS_FAULT=f"data-return:before:hold={hold}")
    moving = a.begin("migrate", "job", "b", "--via", "fleet", "--rounds", "1",
                     env={} if there else {"STASIS_FAULT": f"hand-over:after:hold={hold}"})
    await_journal(*((b, '"phase":"data-return"') if there else (a, '"phase":"hand-over"')))
    wait_until(lambda: len(images_of(a, "fleet")) == 2, 60, lambda: f"the images are {images_of(a, 'fleet')}")
    processes.interrupt(processes.children(moving.pid)[0])
    hold.unlink()
    done = moving.wait()
    b.set_receiver()
    settle(a, b)
    demand(done.code == 1 and "cancelled" in done.err and "b cannot" not in done.err, f"{done}")
    expect_only(a, b)
    demand(not images_of(a, "fleet"), "images are left in the repository")
    expect_no_rest(a, b)
    end(a, b)


def refusals(world, a, b):
    start(a)
    for words, code, text in [
            (("migrate", "job", "-oProxyCommand=x"), 2, ""),
            (("migrate", "job", "a b"), 2, "is not a host"),
            (("migrate", "other", "b"), 3, "other"),
            (("migrate", "job", "b", "--via", "none"), 3, "none")]:
        done = a(*words, expect=code)
        demand(text in done.err, f"the message lacks {text}: {done}")
        expect_only(a, b)
    done = a("migrate", "job", "b", env={"STASIS_MIGRATE_REMOTE_COMMAND": "no-such-stasis"}, expect=None)
    demand(done.code == 1 and "Install Stasis on b" in done.err, f"{done}")
    done = a("migrate", "job", "b", env={"STASIS_MIGRATE_REMOTE_COMMAND": "echo hello"}, expect=None)
    demand(done.code != 0 and "hello" in done.err, f"{done}")
    expect_only(a, b)
    # The job's name is in use on the other host.
    start(b)
    done = a("migrate", "job", "b", expect=7)
    demand("b cannot restore the program" in done.err and "job" in done.err, f"{done}")
    demand(a.runs("job") and b.runs("job"), "one of them has ended")
    end(b)
    # Not enough memory on the other GPU, and another host without the program's file.
    poor = Host(world, "poor", memory="32M")
    done = a("migrate", "job", "poor", expect=None)
    demand(done.code in (1, 5) and "poor cannot restore the program" in done.err, f"{done}")
    expect_only(a, poor)
    expect_no_rest(a, b, poor)
    poor.end()
    end(a)


def without_gpu(a, b):
    """None of the program's code runs on the target before the switch."""
    a.run("job", a.world.workloads / "notcuda")
    a("migrate", "job", "b", "--rounds", "1")
    demand(b.runs("job") and not a.runs("job"), "it does not run on b alone")
    a.set_receiver(STASIS_FAULT="adopt:before:fail")
    b("migrate", "job", "a", "--rounds", "1", expect=1)
    a.set_receiver()
    demand(b.runs("job") and not a.runs("job"), "it does not run on b alone")
    clear(a, b)


def order_comes_late(world, a, b):
    """A program without a GPU, too, waits on the target for a minute at most. Later the source may have reported that
    the outcome is unknown, and the user may have restored the image."""
    a.run("job", a.world.workloads / "notcuda")
    hold = world.folder / "hold"
    hold.touch()
    moving = a.begin("migrate", "job", "b", "--rounds", "0", env={"STASIS_FAULT": f"switch:before:hold={hold}"})
    await_journal(a, '"phase":"switch"')
    wait_until(lambda: not list((b.state / "run" / "journal").glob("*.journal")), 100, "b waits for longer than a minute")
    hold.unlink()
    done = moving.wait()
    demand(done.code == 1 and "wait for the other host to stop the program" in done.err, f"{done}")
    settle(a, b)
    demand(a.runs("job") and not b.runs("job"), "it does not run on a alone")
    clear(a, b)


def of_a_job_that_shares(a, b):
    """The daemon is connected to the agent of a job that shares GPUs, and lets go of it for the migration."""
    a("daemon", "start")
    start(a, options=["--share"])

    def shared():
        return [share["job"] for share in a("share", "--json").json()["shares"] if share["state"] == "awake"]
    wait_until(lambda: shared() == ["job"], 60, lambda: a("share").out)
    # A migration that fails leaves the job with the daemon.
    done = a("migrate", "job", "b", env={"STASIS_FAULT": "hand-over:before:fail"}, expect=1)
    demand("hand-over" in done.err, f"{done}")
    expect_only(a, b)
    wait_until(lambda: shared() == ["job"], 60, lambda: a("share").out)
    a("suspend", "job")
    a("resume", "job")
    a("migrate", "job", "b")
    expect_only(b, a)
    wait_until(lambda: not shared(), 60, lambda: a("share").out)
    expect_no_rest(a, b)
    a("delete", "job")
    end(b)
    a("daemon", "drain")


def run(world, a, b):
    of_a_job_that_shares(a, b)
    there_and_back(world, a, b)
    without_rounds(a, b)
    via_repository(world, a, b)
    interrupted(world, a, b)
    if world.every:
        interrupted(world, a, b, there=False)
    refusals(world, a, b)
    without_gpu(a, b)
    if world.every:
        order_comes_late(world, a, b)


if __name__ == "__main__":
    sys.exit(run_test(run))
