"""full_test.py --build DIR [--all]: the disk is full at each call of a dump that allocates space,
or fails at each of its syncs, or is slow.

record.c lets the first N calls through (files, directories, links, writes, allocations), answers
the next one with half a write or ENOSPC, and all later ones with ENOSPC; or it fails the N-th fsync
with EIO. For every N until the dump succeeds (without --all every fourth): the dump fails with the
reason, there is no image, the store is unchanged, and the program runs on.
"""

import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))

import one_world  # noqa: E402
from programs import Program  # noqa: E402
from world import demand  # noqa: E402

MIB = 1 << 20
ENOUGH = 500
STEP = 4


def on_disk(store):
    """Returns the bytes of all files, each counted once, and all names."""
    files = {(s.st_dev, s.st_ino): s.st_blocks * 512 for p in store.rglob("*") for s in [p.lstat()]}
    return sum(files.values()), sorted(str(p) for p in store.rglob("*"))


def preload(world, store, fault, n):
    return {"LD_PRELOAD": str(world.build / "tests" / "libcrash_record.so"), "STASIS_RECORD_LOG": "/dev/null",
            "STASIS_RECORD_ROOT": os.path.realpath(store), fault: str(n)}


def fail_at_each(world, program, store, name, first, fault, why, *options):
    """Makes the call `first` fail, then later ones, until the dump succeeds."""
    before = on_disk(store)
    failed = 0
    for n in range(1, ENOUGH) if world.every else range(first, ENOUGH, STEP):
        program.dump("--leave-running", "-d", store, *options, name=name, expect=None,
                     env=preload(world, store, fault, n))
        if world.last.code == 0:
            break
        demand(world.last.code == 1, lambda: f"{fault} at call {n}: {world.last}")
        demand(why in world.last.err, lambda: f"{fault} at call {n}, the message has no reason: {world.last}")
        demand(on_disk(store) == before, lambda: f"{fault} at call {n}, the store holds {on_disk(store)}, it was {before}")
        world.expect_clean()
        if failed % 5 == 0:
            program.expect_running()
        failed += 1
    world.stasis("image", "verify", store / name)
    program.expect_running()
    print(f"{name}: {failed} calls that failed, the last before call {n}: {why}", flush=True)
    demand(n > 15, "almost no call was recorded")


def slow_disk(world):
    """If the disk is by far the bottleneck, `auto` detects it and compresses."""
    program = Program(world, "slow", world.build / "tests" / "image_drift",
                      ["--memory", 64 * MIB, "--interval", 5, "--port", 2]).run()
    store = world.folder / "store-slow"
    store.mkdir()
    program.dump("-d", store, "--compress", "auto", "--json", name="slow",
                 env=preload(world, store, "STASIS_RECORD_SLOW", 40))
    stored = world.last.json()["stored"]
    demand(stored["gpu_bytes"] < 0.8 * stored["gpu_uncompressed_bytes"], f"it stores {stored}")
    program.restore(store / "slow")
    program.expect_running()
    program.finish()


def run(world):
    world.env["STASIS_PACK_SIZE"] = "1MiB"
    program = Program(world, "one", world.build / "tests" / "image_drift",
                      ["--memory", 16 * MIB, "--interval", 5, "--port", 1]).run()
    store = world.folder / "store-full"
    store.mkdir()
    full = ("STASIS_RECORD_FULL", "No space left on device")
    fail_at_each(world, program, store, "first", 1, *full, "--compress", "zstd")
    packs = os.listdir(store / "first" / "packs")
    demand(len(packs) > 1, f"the disk was full in {packs} only")
    # The next dump shares blocks, so its links and directories take the space.
    fail_at_each(world, program, store, "second", 2, *full)
    fail_at_each(world, program, store, "third", 3, "STASIS_RECORD_EIO", "Input/output error")
    program.finish()
    slow_disk(world)


if __name__ == "__main__":
    sys.exit(one_world.main(run, last_commands=3))
