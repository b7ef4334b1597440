"""A hundred dumps of a program that runs on, with images deleted and gc at random: every image that is
left verifies, restores, and the program finds its memory as it was. The real programs, on softgpu."""

import argparse
import os
import pathlib
import random
import sys
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))

import isolate  # noqa: E402
import processes  # noqa: E402
from programs import Program  # noqa: E402
from world import Failed, World, demand, isolate_keep  # noqa: E402

MIB = 1 << 20
DUMPS = 100
KEPT = 6
SEED = 7


def on_disk(folder):
    files = {(s.st_dev, s.st_ino): s.st_blocks * 512
             for p in folder.rglob("*") if p.is_file() for s in [p.lstat()]}
    return sum(files.values())


def run(world):
    program = Program(world, "one", world.build / "tests" / "image_drift",
                      ["--memory", 16 * MIB, "--interval", 5, "--port", 1]).run()
    pick = random.Random(SEED)
    alive, freed, deleted = [], 0, 0
    for i in range(DUMPS):
        how = pick.choice(["none", "none", "lz4", "zstd"])
        full = ["--full"] if pick.random() < 0.15 else []
        program.dump("--leave-running", "--compress", how, *full, name=f"i{i}")
        alive.append(f"i{i}")
        victims = []
        while len(alive) > KEPT or (len(alive) > 2 and pick.random() < 0.3):
            victims.append(alive.pop(pick.randrange(len(alive))))
        if victims:
            world.stasis("image", "delete", *victims)
            deleted += len(victims)
        if pick.random() < 0.3:
            freed += world.stasis("image", "gc", "--json").json()["freed_blocks"]
    freed += world.stasis("image", "gc", "--json").json()["freed_blocks"]
    demand(freed > 0, "gc never found anything to free")
    demand(sorted(os.listdir(world.images)) == sorted(alive), f"the store holds {os.listdir(world.images)}, not {alive}")
    listed = {i["name"]: i for i in world.stasis("image", "ls", "--json").json()["images"]}
    cpu = sum(sum(f.stat().st_size for f in (world.images / name / "cpu").iterdir()) for name in alive)
    # What they share is there about once, whatever came and went: what changes, a block in each, beside it.
    bound = 16 * MIB + cpu + len(alive) * 5 * MIB
    demand(on_disk(world.images) < bound, f"{len(alive)} images take {on_disk(world.images)} bytes, not below {bound}")
    for name in alive:
        world.stasis("image", "verify", name)
        program.kill()
        program.restore(name)
        program.expect_running()
    program.finish()
    print(f"{DUMPS} dumps, {deleted} deletes, {freed} blocks freed; of {len(listed)} images all are whole")
    world.stasis("image", "delete", *alive)
    demand(os.listdir(world.images) == [], f"left in the store: {os.listdir(world.images)}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    options = parser.parse_args()
    isolate.enter(isolate_keep(options.build))
    world = World(options.build)
    world.env["STASIS_MOVER_IDLE_S"] = "2"  # it stays from one dump to the next
    try:
        run(world)
        world.expect_clean()
        world.close()
    except Exception as error:  # noqa: BLE001 - whatever it is, the last commands belong to it
        known = isinstance(error, (Failed, processes.Late))
        print(error if known else traceback.format_exc())
        print(f"The last commands:\n{world.transcript(6)}")
        return 1
    print("all as it should be")
    return 0


if __name__ == "__main__":
    sys.exit(main())
