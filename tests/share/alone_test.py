#!/usr/bin/env python3
"""Commands that work without the daemon on a program that shares GPUs: the daemon stays away from it meanwhile, also if
the command is killed, and the program goes on sharing afterwards."""
import os
import pathlib
import signal
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "stage"), str(HERE.parent / "daemon")]
from daemon_fixture import DaemonFixture  # noqa: E402
import one_world  # noqa: E402
from processes import wait_until  # noqa: E402
from share_test import PATIENCE_S, Job, await_shares, shares  # noqa: E402
from world import demand  # noqa: E402

# Room for one program of 64 MiB, three contexts and a mover, but not for two programs.
GPU_MEMORY = "144M"
# Long enough that programs are idle meanwhile, and leave before their turn has ended. A turn is long if swaps are slow.
REST_S = "1.5"


def go_on_sharing(world, *jobs):
    """Each program gets the GPU again, which has room for one of them, and finds its memory as it was."""
    swaps = sum(share["swaps"] for share in shares(world).values())
    for job in jobs:
        job.await_rounds(1)
        job.check()
    wait_until(lambda: sum(share["swaps"] for share in shares(world).values()) > swaps, PATIENCE_S,
               lambda: f"nothing is swapped: {world.stasis('share')}")


def saved_without_the_daemon(world, held, other):
    world.stasis("--no-daemon", "dump", held.name, "--leave-running")
    go_on_sharing(world, held, other)
    world.stasis("--no-daemon", "dump", held.name)
    await_shares(world, lambda all_shares: held.name not in all_shares, "a dumped job shares")
    world.stasis("suspend", other.name)
    world.stasis("restore", held.name)
    await_shares(world, lambda all_shares: held.name in all_shares, "a restored job does not share")
    world.stasis("resume", other.name)
    go_on_sharing(world, held, other)


def suspended_without_the_daemon(world, held, other):
    world.stasis("--no-daemon", "suspend", held.name)
    await_shares(world, lambda all_shares: all_shares[held.name]["by_hand"], "the suspend by hand is not known")
    other.await_rounds(2)
    demand(shares(world)[held.name]["state"] in ("suspended", "context kept"), lambda: str(shares(world)))
    world.stasis("--no-daemon", "resume", held.name)
    await_shares(world, lambda all_shares: not all_shares[held.name]["by_hand"], "the resume by hand is not known")
    go_on_sharing(world, held, other)


def killed_in_the_middle(world, held, other):
    """The command dies while it holds the program. What it has left is recovered, and the program shares again."""
    hold = world.folder / "hold"
    hold.touch()
    command = world.begin("--no-daemon", "dump", held.name, "--leave-running",
                          env={"STASIS_FAULT": f"cpu-dump:before:hold={hold}"})
    world.await_phase("cpu-dump")
    os.kill(command.pid, signal.SIGKILL)
    command.wait()
    hold.unlink()
    world.stasis("recover")
    go_on_sharing(world, held, other)


def held_for_ever(world, daemon, held, other, third):
    """A command that does not go on keeps its own program, and nobody else waits for it."""
    hold = world.folder / "hold"
    hold.touch()
    world.stasis("suspend", held.name)
    command = world.begin("--no-daemon", "dump", held.name, env={"STASIS_FAULT": f"cpu-dump:before:hold={hold}"})
    world.await_phase("cpu-dump")
    go_on_sharing(world, other, third)
    daemon.kill()
    daemon.start()
    os.kill(command.pid, signal.SIGKILL)
    command.wait()
    hold.unlink()
    world.stasis("recover")
    await_shares(world, lambda all_shares: all_shares[held.name]["state"] == "suspended",
                 "the next daemon does not know that the command has ended")
    world.stasis("resume", held.name)
    go_on_sharing(world, held, other)


def drop_in(world, *words, expect=0):
    world.last = world.begin(*words, program=world.build / "libexec" / "compat" / "cuda-checkpoint").wait()
    demand(world.last.code == expect, lambda: f"expected exit code {expect}:\n{world.last}")
    return world.last.out.strip()


def toggled_by_the_drop_in(world, held, other):
    """The drop-in works like the other commands: for a program that is away, the daemon makes room."""
    pid = held.shown()["pid"]
    failed = sum(share["failed_swaps"] for share in shares(world).values())
    for _ in range(2):
        # The other program has taken its place, and uses the GPU.
        await_shares(world, lambda all_shares: all_shares[held.name]["state"] in ("suspended", "context kept"),
                     "the other program does not get the GPU")
        # Or the daemon might swap it out again, idle as it is, before the second step.
        world.stasis("share", "pin", held.name)
        drop_in(world, "--toggle", "--pid", pid)
        demand(shares(world)[held.name]["state"] == "awake", lambda: str(shares(world)))
        drop_in(world, "--toggle", "--pid", pid)
        world.stasis("share", "unpin", held.name)
        demand(drop_in(world, "--get-state", "--pid", pid) == "checkpointed", "it is not checkpointed")
        other.await_rounds(2)
        # Its threads wait in the driver, and nothing but the drop-in brings it back.
        demand(drop_in(world, "--get-state", "--pid", pid) == "checkpointed", "the daemon has resumed it")
        drop_in(world, "--action", "restore", "--pid", pid)
        demand(drop_in(world, "--get-state", "--pid", pid) == "locked", "it is not locked")
        drop_in(world, "--action", "unlock", "--pid", pid)
        go_on_sharing(world, held, other)
    demand(sum(share["failed_swaps"] for share in shares(world).values()) == failed,
           lambda: f"a swap was tried meanwhile: {world.stasis('share')}")


def run(world):
    world.set_gpu(1, GPU_MEMORY)
    world.env["STASIS_HELPER_IDLE_S"] = "5"
    daemon = DaemonFixture(world).start()
    # The drop-in needs room for a copy of the largest piece.
    held = Job(world, "held", "--mib", "64", "--pieces", "4", "--rest", REST_S)
    other = Job(world, "other", "--mib", "64", "--rest", REST_S)
    for job in (held, other):
        job.await_ready()
    go_on_sharing(world, held, other)
    saved_without_the_daemon(world, held, other)
    suspended_without_the_daemon(world, held, other)
    killed_in_the_middle(world, held, other)
    toggled_by_the_drop_in(world, held, other)
    third = Job(world, "third", "--mib", "64", "--rest", REST_S)
    third.await_ready()
    held_for_ever(world, daemon, held, other, third)
    for job in (held, other, third):
        job.end()
    daemon.drain()
    # The daemon may have ended before it has freed the data of a program that was killed while it was away.
    world.stasis("recover")


if __name__ == "__main__":
    sys.exit(one_world.main(run))
