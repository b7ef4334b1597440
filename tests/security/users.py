"""Two users of one machine without entries in /etc/passwd, each with a test environment."""

import argparse
import os
import pathlib
import shutil
import sys
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))
import isolate  # noqa: E402
import processes  # noqa: E402
from programs import Program  # noqa: E402,F401
from world import Failed, World, demand, isolate_keep  # noqa: E402,F401

ALICE, BOB = 4001, 4002
# The capability that the daemon's worker has in addition to its user's rights, unless Yama requires
# more.
RESTORER = ("checkpoint_restore",)


def main(*runs):
    """Calls each of `runs` with a function that creates test environments: new(uid, capabilities).
    Returns the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--only", default="", help="only those whose name contains this")
    options = parser.parse_args()
    isolate.enter(isolate_keep(options.build))
    worlds = []

    def new(uid=0, capabilities=()):
        worlds.append(World(options.build, uid=uid, capabilities=capabilities))
        return worlds[-1]

    for run in runs:
        if options.only not in run.__name__:
            continue
        del worlds[:]
        try:
            run(new)
            for world in worlds:
                close(world)
            processes.wait_until(lambda: alone(worlds), 60,
                                 lambda: "left: " + ", ".join(map(processes.describe, processes.all_pids())))
        except Exception as error:  # noqa: BLE001 - for any error, the last commands are printed
            known = isinstance(error, (Failed, processes.Late))
            print(f"{run.__name__}: {error if known else traceback.format_exc()}")
            for world in worlds:
                print(f"The last commands of user {world.uid}:\n{world.transcript(6)}")
            return 1
        print(f"{run.__name__}: as it should be", flush=True)
    return 0


def close(world):
    """Checks that nothing of an operation is left, and after the cleanup that nothing at all is left."""
    world.expect_clean()
    world.stasis("arena", "free")
    shutil.rmtree(f"/dev/shm/stasis-{world.uid}", ignore_errors=True)
    world.forget_state()
    shutil.rmtree(world.folder, ignore_errors=True)


def alone(worlds):
    for world in worlds:
        world.reap()
    return processes.all_pids() == [os.getpid()]


def as_user(uid, action):
    """Runs `action` in an unprivileged child as that user. Returns the name of the error, or ""."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        word = ""
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            action()
        except OSError as error:
            word = type(error).__name__
        os.write(write, word.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as said:
        word = said.read().decode()
    os.waitpid(child, 0)
    return word
