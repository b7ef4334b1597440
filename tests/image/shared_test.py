"""Images that share blocks: what a dump writes, what deletes and gc leave, and where damage is
reported. Uses the real programs on softgpu."""

import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))

import one_world  # noqa: E402
import isolate  # noqa: E402
from programs import Program  # noqa: E402
from world import demand  # noqa: E402

MIB = 1 << 20
MEMORY = 120 * MIB
ZEROS = 64 * MIB
# Blocks at the edges of the changing part, and slabs of small allocations.
FIXED = 4 * MIB
MS_BIND = 4096


def drift(world, name, number):
    return Program(world, name, world.build / "tests" / "image_drift",
                   ["--memory", MEMORY, "--allocation", ZEROS, "--interval", 5, "--port", number]).run()


def dump(program, name, *options):
    """Returns the dump's account of bytes."""
    program.dump("--json", *options, name=name)
    account = program.world.last.json()
    demand(account["path"] == "shared", lambda: f"not by the data plane: {program.world.last}")
    return account["stored"]


def verify(world, name, damaged=False):
    return world.stasis("image", "verify", name, expect=1 if damaged else 0)


def images(world):
    return {i["name"]: i for i in world.stasis("image", "ls", "--json").json()["images"]}


def gc(world):
    return world.stasis("image", "gc", "--json").json()


def packs(world, name):
    """Returns the packs of GPU memory."""
    return [p for p in world.stasis("image", "inspect", name, "--json").json()["packs"] if p["unit_bytes"] == 2 * MIB]


def on_disk(world):
    """Sums up all files in the store, each once."""
    files = {(s.st_dev, s.st_ino): s.st_blocks * 512
             for p in world.images.rglob("*") if p.is_file() for s in [p.lstat()]}
    return sum(files.values())


def a_second_dump_writes_what_changed(world):
    program = drift(world, "one", 1)
    first = dump(program, "one-1", "--leave-running")
    demand(first["gpu_bytes"] >= MEMORY, f"the first dump stores {first}")
    demand(first["zero_bytes"] >= ZEROS, f"zeros are stored: {first}")
    demand(first["gpu_bytes"] <= MEMORY + FIXED, f"the first dump stores more than there is: {first}")
    program.expect_running()
    before = on_disk(world)
    second = dump(program, "one-2", "--leave-running")
    bound = MEMORY * 0.02 + FIXED
    demand(0 < second["gpu_bytes"] <= bound, f"the second dump stores {second}")
    demand(second["shared_bytes"] >= MEMORY * 0.98 - FIXED, f"the second dump shares {second}")
    # The same holds on disk, where the CPU image is the rest of the added bytes.
    cpu = second["added_bytes"] - second["gpu_bytes"]
    demand(on_disk(world) - before <= bound + cpu + MIB, f"it took {on_disk(world) - before} bytes")
    row = images(world)["one-2"]
    demand(row["size_bytes"] - row["added_bytes"] >= MEMORY * 0.98 - FIXED, f"`image ls` says {row}")
    full = dump(program, "one-full", "--leave-running", "--full")
    demand(full["shared_bytes"] == 0 and full["gpu_bytes"] >= MEMORY, f"--full stores {full}")
    world.stasis("image", "delete", "one-full")
    return program


def two_jobs_share_their_weights(world):
    program = drift(world, "two", 2)
    first = dump(program, "two-1")
    demand(first["gpu_bytes"] <= MEMORY * 0.02 + FIXED, f"the other job stores {first}")
    program.restore()
    program.expect_running()
    program.finish()
    world.stasis("delete", "two")


def a_flipped_bit_is_found_where_it_is_needed(world, program):
    shared = [p for p in packs(world, "one-2") if p["linked"]]
    demand(len(shared) == 1, f"one-2 refers to {shared}")
    for name in ("one-1", "one-2", "two-1"):
        demand((world.images / name / shared[0]["path"]).stat().st_nlink == 3, "it is not one file")
    path = world.images / "one-2" / shared[0]["path"]

    def flip(offset):
        with open(path, "r+b", buffering=0) as file:
            byte = os.pread(file.fileno(), 1, offset)[0]
            os.pwrite(file.fileno(), bytes([byte ^ 16]), offset)
    for offset in (50 * MIB + 7, shared[0]["size_bytes"] - 24):
        flip(offset)
        for name in ("one-1", "one-2", "two-1"):
            demand(shared[0]["path"] in verify(world, name, damaged=True).out, lambda: f"{world.last}")
        flip(offset)
    mine = [p for p in packs(world, "one-2") if not p["linked"]]
    path = world.images / "one-2" / mine[0]["path"]
    flip(900)
    verify(world, "one-2", damaged=True)
    program.kill()
    program.restore("one-2", expect=1)
    demand(mine[0]["path"] in world.last.err, lambda: f"{world.last}")
    for name in ("one-1", "two-1"):
        verify(world, name)
    flip(900)
    verify(world, "one-2")
    program.restore("one-2")
    program.expect_running()


def the_image_that_wrote_them_is_deleted(world, program):
    world.stasis("image", "delete", "one-1")
    for name in ("one-2", "two-1"):
        verify(world, name)
    freed = gc(world)
    # Data only in one-1: its version of the changing part.
    demand(0 < freed["freed_bytes"] <= MEMORY * 0.02 + FIXED, f"gc frees {freed}")
    demand(gc(world)["freed_bytes"] == 0, "gc frees twice")
    program.kill()
    program.restore("one-2")
    program.expect_running()


def killed_while_it_shares(world, program):
    """Links of a failed dump do not hold data forever."""
    held = on_disk(world)
    world.stasis("dump", "one", "--name", "dead", "--leave-running", expect=None,
                 env={"STASIS_FAULT": "data-write:after:die"})
    demand(world.last.code == -9, lambda: f"it was not killed: {world.last}")
    demand([n for n in os.listdir(world.images) if n.startswith(".dead.")], "the dead dump left no folder")
    world.stasis("recover")
    gc(world)
    demand(not [n for n in os.listdir(world.images) if n.startswith(".")], "gc left the dead dump's folder")
    # Allows a few pages for the file system's hole maps.
    demand(on_disk(world) <= held + 64 * 1024, "the dead dump's bytes are still there")
    program.expect_running()


def no_links_no_sharing(world, program):
    """Simulates a file system without hard links: each image is a separate mount."""
    mounted = []
    for name in images(world):
        isolate.mount(str(world.images / name), str(world.images / name), flags=MS_BIND)
        mounted.append(str(world.images / name))
    try:
        stored = dump(program, "unlinked", "--leave-running")
        demand(stored["gpu_bytes"] >= MEMORY, f"it stores {stored}")
        verify(world, "unlinked")
    finally:
        for path in mounted:
            isolate.unmount(path)
    world.stasis("image", "delete", "unlinked")


def a_second_dump_fits_where_a_whole_one_does_not(world, program):
    store = world.folder / "store-small"
    store.mkdir()
    isolate.mount("tmpfs", str(store), "tmpfs", 0, f"size={MEMORY + ZEROS + 40 * MIB},mode=0700")
    world._mounts.append(str(store))
    for name in ("small-1", "small-2"):
        stored = dump(program, name, "-d", store, "--leave-running")
    demand(stored["gpu_bytes"] <= MEMORY * 0.02 + FIXED, f"it stores {stored}")
    program.dump("-d", store, "--leave-running", "--full", name="small-3", expect=1)
    demand("does not fit" in world.last.err, lambda: f"{world.last}")
    world.stasis("image", "delete", "-d", store, "small-1")
    verify(world, store / "small-2")
    program.expect_running()
    isolate.unmount(str(store))
    world._mounts.remove(str(store))
    store.rmdir()


def each_codec(world, program):
    for how in ("none", "lz4", "zstd", "auto"):
        stored = dump(program, how, "--full", "--leave-running", "--compress", how)
        smaller = stored["gpu_bytes"] < 0.9 * stored["gpu_uncompressed_bytes"]
        if how != "auto":  # auto may or may not have time to compress
            demand(smaller == (how != "none"), f"--compress {how} stores {stored}")
        verify(world, how)
        program.kill()
        program.restore(how)
        program.expect_running()
    # Blocks are shared even if their codecs differ.
    stored = dump(program, "after", "--leave-running", "--compress", "lz4")
    demand(stored["gpu_bytes"] <= MEMORY * 0.02 + FIXED, f"it stores {stored}")
    world.stasis("image", "delete", "none", "lz4", "zstd", "auto", "after")
    world.stasis("dump", "one", "--compress", "brotli", expect=2)


def run(world):
    program = a_second_dump_writes_what_changed(world)
    two_jobs_share_their_weights(world)
    a_flipped_bit_is_found_where_it_is_needed(world, program)
    the_image_that_wrote_them_is_deleted(world, program)
    killed_while_it_shares(world, program)
    no_links_no_sharing(world, program)
    a_second_dump_fits_where_a_whole_one_does_not(world, program)
    each_codec(world, program)
    program.finish()
    world.stasis("image", "delete", *images(world))
    demand(os.listdir(world.images) == [], f"left in the store: {os.listdir(world.images)}")


if __name__ == "__main__":
    sys.exit(one_world.main(run))
