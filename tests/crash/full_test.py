"""full_test.py --build DIR: the disk is full at each call of a dump that takes space on it, or fails at
each of its syncs; or it is slow.

record.c lets the first N calls through (files, folders, links, writes, allocations), answers the next
with half a write or ENOSPC, and all later ones with ENOSPC; or it fails the N-th fsync with EIO. For
every N until the dump succeeds: it fails and says why, there is no image, the store is as it was, the
program runs on.
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


def on_disk(store):
    """Bytes of all files, each once, and all names."""
    files = {(s.st_dev, s.st_ino): s.st_blocks * 512 for p in store.rglob("*") for s in [p.lstat()]}
    return sum(files.values()), sorted(str(p) for p in store.rglob("*"))


def preload(world, store, fault, n):
    return {"LD_PRELOAD": str(world.build / "tests" / "libcrash_record.so"), "STASIS_RECORD_LOG": "/dev/null",
            "STASIS_RECORD_ROOT": os.path.realpath(store), fault: str(n)}


def fail_at_each(world, program, store, name, fault, why, *options):
    before = on_disk(store)
    for n in range(1, ENOUGH):
        program.dump("--leave-running", "-d", store, *options, name=name, expect=None,
                     env=preload(world, store, fault, n))
        if world.last.code == 0:
            break
        demand(world.last.code == 1, lambda: f"{fault} at call {n}: {world.last}")
        demand(why in world.last.err, lambda: f"{fault} at call {n}, it does not say why: {world.last}")
        demand(on_disk(store) == before, lambda: f"{fault} at call {n}, the store holds {on_disk(store)}, it was {before}")
        world.expect_clean()
        if n % 5 == 1:
            program.expect_running()
    world.stasis("image", "verify", store / name)
    program.expect_running()
    print(f"{name}: {n - 1} calls that failed: {why}", flush=True)
    demand(n > 15, "hardly any call was seen")


def slow_disk(world):
    """Where the disk is the slower part by far, `auto` finds that out and compresses."""
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
    fail_at_each(world, program, store, "first", *full, "--compress", "zstd")
    packs = os.listdir(store / "first" / "gpu")
    demand(len(packs) > 1, f"the disk was full in {packs} only")
    # The next shares blocks: its links and folders are what takes space.
    fail_at_each(world, program, store, "second", *full)
    fail_at_each(world, program, store, "third", "STASIS_RECORD_EIO", "Input/output error")
    program.finish()
    slow_disk(world)


if __name__ == "__main__":
    sys.exit(one_world.main(run, last_commands=3))
