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


def run(world):
    world.set_gpu(1, GPU_MEMORY)
    world.env["STASIS_HELPER_IDLE_S"] = "5"
    daemon = DaemonFixture(world).start()
    held, other = (Job(world, name, "--mib", "64", "--rest", REST_S) for name in ("held", "other"))
    for job in (held, other):
        job.await_ready()
    go_on_sharing(world, held, other)
    saved_without_the_daemon(world, held, other)
    suspended_without_the_daemon(world, held, other)
    killed_in_the_middle(world, held, other)
    third = Job(world, "third", "--mib", "64", "--rest", REST_S)
    third.await_ready()
    held_for_ever(world, daemon, held, other, third)
    for job in (held, other, third):
        job.end()
    daemon.drain()


if __name__ == "__main__":
    sys.exit(one_world.main(run))
