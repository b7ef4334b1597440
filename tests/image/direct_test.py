"""A restore loads GPU memory from the packs of an image without an arena, and the GPU checks it before
the program runs. Checks both ways, damage, kills, and that the next dump writes only what changed. Uses
the real programs on softgpu, whose new memory is full of garbage."""

import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))

import one_world  # noqa: E402
import isolate  # noqa: E402
from programs import Program  # noqa: E402
from world import demand  # noqa: E402

MIB = 1 << 20
MEMORY = 64 * MIB
ZEROS = 16 * MIB
FIXED = 4 * MIB  # blocks at the edges of the changing part
NOTE = "loaded through arenas"


def dump(world, program, name, *options):
    program.dump("--json", *options, name=name)
    account = world.last.json()
    demand(account["path"] == "shared", lambda: f"not by the data plane: {world.last}")
    return account["stored"]


def arenas(world):
    return world.stasis("arena", "ls", "--json").json()["arenas"]


def restore(world, program, image, *options, env=None):
    """Returns the notes, and whether an arena was filled."""
    world.stasis("arena", "free")
    demand(not arenas(world), "there are arenas before the restore")
    world.stasis("restore", image, "--job", program.name, "--json", *options, env=env)
    account = world.last.json()
    program.find_pid()
    program.expect_running()
    loaded = [p["bytes"] for p in account["phases"] if p["name"] == "data-load"]
    demand(loaded and loaded[0] >= MEMORY, lambda: f"data-load loaded {loaded}")
    return " ".join(account["notes"]), bool(arenas(world))


def refused(world, program, image, *words, env=None):
    """The restore fails with these words, and nothing of the program is left."""
    world.stasis("restore", image, "--job", program.name, expect=1, env=env)
    for word in words:
        demand(word in world.last.err, lambda: f"it does not say {word}: {world.last}")
    demand(program.state() == "dumped", lambda: f"the program is {program.state()}")
    demand(not os.path.exists(f"/proc/{program.pid}"), "the program runs")


def pack_of(world, image):
    """Returns the largest pack of GPU memory."""
    packs = world.stasis("image", "inspect", image, "--json").json()["packs"]
    return max((p["size_bytes"], p["path"]) for p in packs if p["unit_bytes"] == 2 * MIB)[1]


def flip(path, offset):
    with open(path, "r+b", buffering=0) as file:
        byte = os.pread(file.fileno(), 1, offset)[0]
        os.pwrite(file.fileno(), bytes([byte ^ 16]), offset)


def both_ways(world, program):
    dump(world, program, "one")
    notes, filled = restore(world, program, "one")
    demand(not filled and NOTE not in notes, f"by an arena: {notes}")
    # The next dump finds in the image what was loaded from it.
    stored = dump(world, program, "two")
    demand(stored["gpu_bytes"] <= MEMORY * 0.02 + FIXED, f"the next dump stores {stored}")
    demand(stored["shared_bytes"] >= MEMORY * 0.98 - FIXED, f"the next dump shares {stored}")
    _, filled = restore(world, program, "two", env={"STASIS_RESTORE_DATA": "arena"})
    demand(filled, "no arena was filled")
    dump(world, program, "three")


def damage_is_found(world, program):
    for how in ("none", "zstd"):
        if how != "none":
            restore(world, program, "three")
            dump(world, program, how, "--full", "--compress", how)
        image = "three" if how == "none" else how
        pack = pack_of(world, image)
        path = world.images / image / pack
        flip(path, 70000)
        refused(world, program, image, f"cannot restore {image}", "data-load", f"{pack} is damaged", "device address")
        flip(path, 70000)
        size = path.stat().st_size
        tail = path.read_bytes()[size - 8192:]
        os.truncate(path, size - 8192)
        refused(world, program, image, "data-read", pack)
        with open(path, "ab") as file:
            file.write(tail)
        restore(world, program, image)
        dump(world, program, "three" + how)
        world.stasis("image", "verify", image)


def kills_leave_nothing(world, program, image):
    """Of the mover at a copy, at the hashing and at the hand-over; of the command before and after the load."""
    for call in ("cuMemcpyHtoDAsync_v2:4", "cuMemsetD8Async:1", "cuLaunchKernel:1", "cuMemExportToShareableHandle:1"):
        refused(world, program, image, "data-load", "signal 9", env={"SOFTGPU_FAULT": f"{call}=die"})
    for place in ("data-read:after", "data-load:before", "data-load:after"):
        world.stasis("restore", image, "--job", program.name, expect=-9, env={"STASIS_FAULT": f"{place}:die"})
        world.stasis("recover")
        demand(program.state() == "dumped", lambda: f"the program is {program.state()} after {place}")
    _, filled = restore(world, program, image)
    demand(not filled, "an arena was filled")
    dump(world, program, "last")


def where_it_cannot_be(world, program, image):
    """Without the kernel, or with another key, an arena is filled and the account says so."""
    folder = world.folder / "no-kernel"
    folder.mkdir()
    kernel = world.build / "lib/softgpu/block_hashes.softgpu.so"
    (folder / "empty").write_bytes(b"")
    isolate.mount(str(folder / "empty"), str(kernel), flags=4096)
    try:
        notes, filled = restore(world, program, image)
    finally:
        isolate.unmount(str(kernel))
    demand(filled and NOTE in notes, f"not by an arena: {notes}")
    dump(world, program, "before-key")
    (world.state / "data" / "secret.key").unlink()
    notes, filled = restore(world, program, "before-key", "--trust-image")
    demand(filled and NOTE in notes and "key" in notes, f"not by an arena: {notes}")


def run(world):
    program = Program(world, "one", world.build / "tests" / "image_drift",
                      ["--memory", MEMORY, "--allocation", ZEROS, "--interval", 5, "--port", 1]).run()
    both_ways(world, program)
    damage_is_found(world, program)
    kills_leave_nothing(world, program, "three")
    where_it_cannot_be(world, program, "last")
    program.finish()
    names = [image["name"] for image in world.stasis("image", "ls", "--json").json()["images"]]
    world.stasis("image", "delete", *names)


if __name__ == "__main__":
    sys.exit(one_world.main(run))
