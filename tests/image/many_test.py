"""Ten dumps (with --all a hundred) of a running program, with random deletes and gcs: every
remaining image verifies and restores, and the program finds its memory unchanged. Uses the real
programs on softgpu."""

import os
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import one_world  # noqa: E402
import read_image  # noqa: E402
from programs import Program  # noqa: E402
from world import demand  # noqa: E402

MIB = 1 << 20
DUMPS = 10
ALL_DUMPS = 100
KEPT = 6
SEED = 7


def on_disk(store):
    """Sums up all packs, each file once."""
    files = {(s.st_dev, s.st_ino): s.st_blocks * 512 for p in store.glob("*/packs/*") for s in [p.lstat()]}
    return sum(files.values())


def needed_bytes(store, names):
    """Returns the bytes that packs must hold for these images, according to the independent reader,
    and the number of packs."""
    units, packs = {}, {}
    for name in names:
        manifest = read_image.read_manifest(store / name)
        recorded = list(read_image.packs_of(manifest))
        for message in recorded:
            if message["path"] not in packs:
                packs[message["path"]] = read_image.open_pack(store / name, message)
        mine = [packs[message["path"]] for message in recorded]
        for _, _, _, runs in [*read_image.ranges_of(manifest, recorded), *read_image.page_files_of(manifest, recorded)]:
            for place, first, count in runs:
                for number in range(first, first + count) if place is not None else []:
                    extent, which = mine[place].extents[number]
                    if extent[4] == 0:
                        units[mine[place].where, extent, which] = read_image.padded(mine[place].bytes_of(number))
                    else:
                        units[mine[place].where, extent] = read_image.padded(extent[1])
    return sum(units.values()) + sum(pack.frame_bytes() for pack in packs.values()), len(packs)


def run(world):
    program = Program(world, "one", world.build / "tests" / "image_drift",
                      ["--memory", 16 * MIB, "--handles", 8, "--interval", 5, "--port", 1]).run()
    pick = random.Random(SEED)
    alive, freed, deleted, most_packs = [], 0, 0, 0
    dumps = ALL_DUMPS if world.every else DUMPS
    for _ in range(dumps):
        how = pick.choice(["none", "none", "lz4", "zstd"])
        full = ["--full"] if pick.random() < 0.15 else []
        name = f"i{pick.randrange(1 << 32):08x}"  # random, so not in order
        # About half of the images use several packs, written concurrently.
        program.dump("--leave-running", "--compress", how, *full, name=name,
                     env={"STASIS_PACK_SIZE": pick.choice(["1MiB", "128MiB"])})
        most_packs = max(most_packs, len(os.listdir(world.images / name / "packs")))
        alive.append(name)
        victims = []
        while len(alive) > KEPT or (len(alive) > 2 and pick.random() < 0.3):
            victims.append(alive.pop(pick.randrange(len(alive))))
        if victims:
            world.stasis("image", "delete", *victims)
            deleted += len(victims)
        if pick.random() < 0.3:
            freed += world.stasis("image", "gc", "--json").json()["freed_units"]
    freed += world.stasis("image", "gc", "--json").json()["freed_units"]
    demand(freed > 0, "gc never found anything to free")
    demand(most_packs > 2, f"no image had more than {most_packs} packs")
    demand(sorted(os.listdir(world.images)) == sorted(alive), f"the store holds {os.listdir(world.images)}, not {alive}")
    needed, packs = needed_bytes(world.images, alive)
    found = on_disk(world.images)
    # Allows a few pages for the file system's hole maps.
    demand(found <= needed + packs * 16384, f"{packs} packs take {found} bytes, and {needed} are needed")
    for name in alive:
        world.stasis("image", "verify", name)
        program.kill()
        program.restore(name)
        program.expect_running()
    program.finish()
    print(f"{dumps} dumps, {deleted} deletes, {freed} units freed; all {len(alive)} images that are left are whole")
    world.stasis("image", "delete", *alive)
    demand(os.listdir(world.images) == [], f"left in the store: {os.listdir(world.images)}")


if __name__ == "__main__":
    # Movers stay between dumps.
    sys.exit(one_world.main(run, last_commands=6, env={"STASIS_HELPER_IDLE_S": "2"}))
