#!/usr/bin/env python3
"""Failures of programs that share a GPU: swaps that fail are undone and tried again, programs that die while they wait or
are suspended leave nothing behind, and nothing waits for a GPU that has failed."""
import os
import pathlib
import signal
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "stage"), str(HERE.parent / "daemon")]
from alone_test import GPU_MEMORY, REST_S, go_on_sharing  # noqa: E402
from daemon_fixture import DaemonFixture  # noqa: E402
import one_world  # noqa: E402
from processes import wait_until  # noqa: E402
from share_test import PATIENCE_S, Job, await_shares, data_in, shares  # noqa: E402
from world import demand  # noqa: E402

AWAY = ("suspended", "context kept")


def start(world, name, rest=REST_S):
    return Job(world, name, "--mib", "64", "--rest", rest)


def a_suspend_that_fails(world, daemon):
    """It is undone: the program goes on with its memory, and the one that waits gets the GPU when a suspend succeeds."""
    daemon.start(env={"STASIS_FAULT": "data-save:before:fail"})
    stays = start(world, "stays")
    stays.await_ready()
    waits = start(world, "waits")
    await_shares(world, lambda all_shares: all_shares["stays"]["failed_swaps"] > 1, "no swap has failed")
    stays.await_rounds(2)
    stays.check()
    share = shares(world)["stays"]
    demand(share["swaps"] == 0 and share["state"] in ("awake", "suspending"), lambda: str(share))
    demand("data-save" in share["problem"], lambda: f"no reason: {share}")
    demand("data-save" in world.stasis("share").out, lambda: f"no reason: {world.last}")
    demand("READY" not in waits.text(), "both are on the GPU")
    daemon.kill()
    daemon.start()
    waits.await_ready()
    go_on_sharing(world, stays, waits)
    return stays, waits


def a_resume_that_fails(world, daemon, first, second):
    """The program stays suspended and waits, with its data."""
    daemon.drain()
    daemon.start(env={"STASIS_FAULT": "data-load:before:fail"})
    await_shares(world, lambda all_shares: any("data-load" in share["problem"] for share in all_shares.values()),
                 "no resume has failed")
    failed = [share for share in shares(world).values() if share["failed_swaps"]]
    demand(failed and failed[0]["state"] in (*AWAY, "resuming"), lambda: str(failed))
    for job in (first, second):
        job.check()
    daemon.drain()
    daemon.start()
    go_on_sharing(world, first, second)


def one_that_dies_at_the_gate(world, first, second):
    world.stasis("share", "pin", second.name)
    await_shares(world, lambda all_shares: all_shares[first.name]["state"] in AWAY
                 and (all_shares[first.name]["waits_s"] or 0) > 0, "it does not wait")
    demand(any(data_in(world)), "a suspended program has no data")
    os.kill(first.shown()["pid"], signal.SIGKILL)
    await_shares(world, lambda all_shares: first.name not in all_shares, "a dead program shares")
    wait_until(lambda: not any(data_in(world)), PATIENCE_S, "the data of a program that was killed is not freed")
    world.stasis("wait", first.name, expect=137)
    world.stasis("delete", first.name)
    world.stasis("share", "unpin", second.name)
    second.await_rounds(2)


def one_that_dies_while_it_is_suspended(world, busy):
    idle = start(world, "idle", rest="1000")
    idle.await_ready()
    await_shares(world, lambda all_shares: all_shares["idle"]["state"] in AWAY, "it stays on the GPU")
    third = start(world, "third")
    third.await_ready()
    os.kill(idle.shown()["pid"], signal.SIGKILL)
    await_shares(world, lambda all_shares: "idle" not in all_shares, "a dead program shares")
    world.stasis("wait", "idle", expect=137)
    world.stasis("delete", "idle")
    go_on_sharing(world, busy, third)
    third.end()


def a_gpu_that_fails(world, daemon, first):
    """Nobody can see whether there is room: an allocation that waits fails in time, and the others go on."""
    daemon.drain()
    daemon.start(env={"STASIS_SHARE_MAX_WAIT_S": "5"})
    first.await_rounds(1)
    world.gpu_fault("cuDeviceTotalMem_v2=fail(46)")
    asks = start(world, "asks")
    wait_until(lambda: asks.failures() > 0, PATIENCE_S, lambda: f"its allocation waits for ever: {asks.about()}")
    demand(first.name in shares(world), lambda: str(shares(world)))
    first.await_rounds(1)
    first.check()
    world.gpu_fault("")
    asks.await_ready()
    go_on_sharing(world, first, asks)
    asks.end()


def run(world):
    world.set_gpu(1, GPU_MEMORY)
    world.env["STASIS_HELPER_IDLE_S"] = "5"
    daemon = DaemonFixture(world)
    first, second = a_suspend_that_fails(world, daemon)
    a_resume_that_fails(world, daemon, first, second)
    one_that_dies_at_the_gate(world, first, second)
    one_that_dies_while_it_is_suspended(world, second)
    a_gpu_that_fails(world, daemon, second)
    second.end()
    wait_until(lambda: not any(data_in(world)), PATIENCE_S, "the data of a program that was killed is not freed")
    daemon.drain()


if __name__ == "__main__":
    sys.exit(one_world.main(run))
