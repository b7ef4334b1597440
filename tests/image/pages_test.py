"""CPU memory shared between images: what a second dump writes, correct restores, detection of
damage, and what deletes, gc, kills and full disks leave. CRIU restores the memory; fill_test.py has the other way. Uses
the real programs."""

import os
import pathlib
import re
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import one_world  # noqa: E402
import isolate  # noqa: E402
import read_image  # noqa: E402
from programs import Program  # noqa: E402
from world import demand  # noqa: E402

MIB = 1 << 20
MEMORY = 64 * MIB
ZEROS = 4 * MIB
# Stacks, libc's data, and pages of the kernel and CRIU, which differ each time.
FIXED = 1 * MIB
CHANGED = MEMORY * 0.01
MS_BIND, MS_REMOUNT, MS_RDONLY = 4096, 32, 1


def heap(world, name, number):
    return Program(world, name, world.build / "tests" / "image_heap",
                   ["--memory", MEMORY, "--allocation", ZEROS, "--interval", 20, "--port", number,
                    "--handles", 1]).run()


def dump(program, name, *options, **more):
    """Returns the dump's account of CPU memory."""
    program.dump("--json", *options, name=name, **more)
    return program.world.last.json()["stored"]


def packs(world, name):
    return world.stasis("image", "inspect", name, "--json").json()["packs"]


def on_disk(world):
    files = {(s.st_dev, s.st_ino): s.st_blocks * 512
             for p in world.images.rglob("*") if p.is_file() for s in [p.lstat()]}
    return sum(files.values())


def leftovers(world):
    """Returns files made for CRIU."""
    return [str(p) for p in world.folder.rglob(".*.cpu-*")]


def restore(program, name, **options):
    program.kill()
    program.restore(name, **options)
    if options.get("expect", 0) == 0:
        program.expect_running()
    demand(not leftovers(program.world), f"left: {leftovers(program.world)}")


def a_second_dump_writes_what_changed(world, program):
    first = dump(program, "one-1", "--leave-running")
    demand(MEMORY <= first["cpu_bytes"] <= MEMORY + 8 * MIB, f"the first dump stores {first}")
    demand(first["cpu_zero_bytes"] >= ZEROS, f"zeros are stored: {first}")
    program.expect_running()
    before = on_disk(world)
    second = dump(program, "one-2", "--leave-running")
    bound = MEMORY * 0.02 + FIXED
    demand(CHANGED * 0.9 <= second["cpu_bytes"] <= bound, f"the second dump stores {second}")
    demand(second["cpu_shared_bytes"] >= MEMORY * 0.98 - FIXED, f"the second dump shares {second}")
    demand(second["added_bytes"] <= bound + FIXED, f"it adds {second}")
    demand(on_disk(world) - before <= bound + 2 * FIXED, f"it took {on_disk(world) - before} bytes")
    demand("already in earlier images" in world.stasis("dump", "one", "--name", "text", "--leave-running").out,
           f"{world.last}")
    world.stasis("image", "delete", "text")
    full = dump(program, "one-full", "--leave-running", "--full")
    demand(full["cpu_shared_bytes"] == 0 and full["cpu_bytes"] >= MEMORY, f"--full stores {full}")
    world.stasis("image", "delete", "one-full")
    for name in ("one-1", "one-2"):
        world.stasis("image", "verify", name)
        restore(program, name)


def two_programs_share(world):
    program = heap(world, "two", 2)
    stored = dump(program, "two-1")
    demand(stored["cpu_bytes"] <= MEMORY * 0.02 + 4 * FIXED, f"the other program stores {stored}")
    program.restore()
    program.expect_running()
    program.finish()
    world.stasis("delete", "two")
    world.stasis("image", "delete", "two-1")


def the_second_reader_makes_the_same_files(world):
    """Compares each page with the files that CRIU would get."""
    folder = world.folder / "made"
    folder.mkdir()
    read_image.make_cpu_files(str(world.images / "small"), str(folder))
    demand(any(f.name.startswith("pages-") for f in folder.iterdir()), "it makes no pages")
    demand(read_image.verify(str(world.images / "small")) == [], "it finds something")


def a_flipped_bit_is_found(world, program):
    """Detected before the program runs, in the pages of both packs."""
    for pack in packs(world, "one-2"):
        path = world.images / "one-2" / pack["path"]
        # The linked pack starts like CRIU's file, with pages of the program.
        for offset in (pack["size_bytes"] // 3, pack["size_bytes"] - 5):
            with open(path, "r+b", buffering=0) as file:
                whole = os.pread(file.fileno(), 4096 * 3, offset)
                # At least one of three consecutive pages is in use; one in a hundred has changed.
                os.pwrite(file.fileno(), bytes(b ^ 16 for b in whole), offset)
                world.stasis("image", "verify", "one-2", expect=1)
                demand(pack["path"] in world.last.out, f"{world.last}")
                restore(program, "one-2", expect=1)
                demand(pack["path"] in world.last.err, f"{world.last}")
                os.pwrite(file.fileno(), whole, offset)
    world.stasis("image", "verify", "one-2")
    program.restore("one-2")
    program.expect_running()


def deletes_and_gc(world, program):
    world.stasis("image", "delete", "one-1")
    world.stasis("image", "verify", "one-2")
    world.stasis("image", "gc", "--json")
    freed = world.last.json()["freed_bytes"]
    # Data only in one-1: its version of the changing pages, and zeros in CRIU's file.
    demand(CHANGED * 0.9 <= freed <= MEMORY * 0.02 + ZEROS + 2 * FIXED, f"gc frees {freed}")
    demand(world.stasis("image", "gc", "--json").json()["freed_bytes"] == 0, "gc frees twice")
    world.stasis("image", "verify", "one-2")
    restore(program, "one-2")


def killed(world, program):
    """A dump is killed in the phase that writes CPU memory: nothing is left over, and the program is unchanged."""
    held = on_disk(world)
    for phase, when in (("cpu-write", "before"), ("cpu-write", "after")):
        world.stasis("dump", "one", "--name", "dead", "--leave-running", expect=None,
                     env={"STASIS_FAULT": f"{phase}:{when}:die"})
        demand(world.last.code == -9, f"it was not killed: {world.last}")
        world.stasis("recover")
        world.stasis("image", "gc")
        demand(on_disk(world) <= held + 64 * 1024, "the dead dump's bytes are still there")
        program.expect_running()
    program.kill()
    for phase, when in (("cpu-read", "after"), ("cpu-restore", "before")):
        world.stasis("restore", "one-2", expect=None, env={"STASIS_FAULT": f"{phase}:{when}:die"})
        demand(world.last.code == -9, f"it was not killed: {world.last}")
        demand(leftovers(world), "nothing was made?")
        world.stasis("recover")
        demand(not leftovers(world), f"left: {leftovers(world)}")
    program.restore("one-2")
    program.expect_running()


def no_room_in_memory(world, program):
    """If memory is too small, CRIU's files are made on disk."""
    small = world.folder / "small-memory"
    small.mkdir()
    isolate.mount("tmpfs", str(small), "tmpfs", 0, "size=8m,mode=0700")
    try:
        world.stasis("kill", "one", expect=None)
        world.stasis("wait", "one", expect=None)
        world.stasis("restore", "one-2", expect=None,
                     env={"STASIS_ARENA_DIR": str(small), "STASIS_FAULT": "cpu-read:after:die"})
        demand(world.last.code == -9, f"it was not killed: {world.last}")
        demand([p for p in leftovers(world) if p.startswith(str(world.state / "data/."))], f"{leftovers(world)}")
        world.stasis("recover")
        demand(not leftovers(world), f"left: {leftovers(world)}")
        # A power failure loses the record of the folders with these files.
        world.stasis("restore", "one-2", expect=None,
                     env={"STASIS_ARENA_DIR": str(small), "STASIS_FAULT": "cpu-read:after:die"})
        demand(leftovers(world), "nothing was made?")
        power_cut(world.state)
        world.stasis("recover")
        demand(not leftovers(world), f"left: {leftovers(world)}")
        restore(program, "one-2", env={"STASIS_ARENA_DIR": str(small)})
    finally:
        isolate.unmount(str(small))


def power_cut(state):
    """Removes what does not survive a reboot."""
    for entry in [*(state / "run" / "journal").iterdir(), *(state / "run").glob("work-*")]:
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def no_room_of_our_own(world, program):
    """A host with too little memory and disk space of its own uses the disk of the image."""
    tiny = world.folder / "tiny"
    tiny.mkdir()
    isolate.mount("tmpfs", str(tiny), "tmpfs", 0, "size=8m,mode=0700")
    (tiny / "arena").mkdir(mode=0o700)
    # Give this state directory the secret with which the image was written.
    (tiny / "data").mkdir(mode=0o711)
    shutil.copy2(world.state / "data" / "secret.key", tiny / "data")
    image = world.images / "one-2"
    env = {"STASIS_STATE_DIR": str(tiny), "STASIS_ARENA_DIR": str(tiny / "arena")}

    def dies():
        world.stasis("restore", str(image), "--job", "two", expect=None,
                     env={**env, "STASIS_FAULT": "cpu-read:after:die"})
        demand(world.last.code == -9, f"it was not killed: {world.last}")
        demand([p for p in leftovers(world) if p.startswith(str(world.images))], f"{leftovers(world)}")

    program.kill()
    try:
        dies()
        world.stasis("recover", env=env)
        demand(not leftovers(world), f"left: {leftovers(world)}")
        # After a power failure the next restore or gc removes the files.
        for sweep in (["image", "gc", "-d", str(world.images)], ["restore", str(image), "--job", "two"]):
            dies()
            power_cut(tiny)
            world.stasis(*sweep, env=env)
            demand(not leftovers(world), f"left: {leftovers(world)}")
        world.stasis("kill", "two", env=env, expect=None)
        world.stasis("wait", "two", env=env, expect=None)
        # A read-only store: the error names each directory that was tried, with its free space.
        isolate.mount(str(world.images), str(world.images), flags=MS_BIND)
        isolate.mount("", str(world.images), flags=MS_BIND | MS_REMOUNT | MS_RDONLY)
        try:
            world.stasis("restore", str(image), "--job", "three", env=env, expect=1)
            for place in (rf"[0-9]+ in {tiny}/arena .[0-9]+ needed", rf"[0-9]+ in {tiny}/data .[0-9]+ needed",
                          rf"none .not writable. in {world.images} .[0-9]+ needed"):
                demand(re.search(place, world.last.err), f"it does not say {place}: {world.last}")
        finally:
            isolate.unmount(str(world.images))
    finally:
        isolate.unmount(str(tiny))
    program.restore("one-2")
    program.expect_running()


def no_links_no_sharing(world, program):
    """Simulates a file system without hard links: each image is a separate mount. The account gives the reason."""
    path = str(world.images / "one-2")
    isolate.mount(path, path, flags=MS_BIND)
    try:
        stored = dump(program, "unlinked", "--leave-running")
        demand(stored["cpu_bytes"] >= MEMORY and stored["cpu_shared_bytes"] == 0, f"it stores {stored}")
        demand("written again" in world.last.json()["notes"][0], f"{world.last}")
        world.stasis("image", "verify", "unlinked")
    finally:
        isolate.unmount(path)
    world.stasis("image", "delete", "unlinked")


def a_full_disk(world, program):
    """A second dump fits where a complete one does not. The failed one leaves nothing, and the
    program runs on."""
    store = world.folder / "store-small"
    store.mkdir()
    isolate.mount("tmpfs", str(store), "tmpfs", 0, f"size={2 * MEMORY + 24 * MIB},mode=0700")
    try:
        dump(program, "s1", "-d", store, "--leave-running")
        stored = dump(program, "s2", "-d", store, "--leave-running")
        demand(stored["cpu_bytes"] <= MEMORY * 0.02 + FIXED, f"it stores {stored}")
        dump(program, "s3", "-d", store, "--leave-running", "--full")
        world.stasis("dump", "one", "--name", "s4", "-d", store, "--leave-running", "--full", expect=1)
        world.stasis("image", "delete", "-d", store, "s3")
        demand(sorted(os.listdir(store)) == ["s1", "s2"], f"left: {os.listdir(store)}")
        program.expect_running()
        world.stasis("image", "verify", str(store / "s2"))
    finally:
        isolate.unmount(str(store))


def compressed(world, program):
    for how in ("lz4", "zstd"):
        stored = dump(program, how, "--leave-running", "--full", "--compress", how)
        demand(stored["cpu_bytes"] < stored["cpu_uncompressed_bytes"], f"{how} stores {stored}")
        restore(program, how)
    world.stasis("image", "delete", "lz4", "zstd")


def run(world):
    program = heap(world, "one", 1)
    a_second_dump_writes_what_changed(world, program)
    two_programs_share(world)
    a_flipped_bit_is_found(world, program)
    deletes_and_gc(world, program)
    killed(world, program)
    no_room_in_memory(world, program)
    no_room_of_our_own(world, program)
    no_links_no_sharing(world, program)
    a_full_disk(world, program)
    compressed(world, program)
    program.finish()
    world.stasis("image", "delete", "one-2")
    small = Program(world, "small", world.build / "tests" / "image_heap", ["--memory", MIB, "--interval", 20]).run()
    small.dump(name="small")
    the_second_reader_makes_the_same_files(world)
    small.restore("small")
    small.finish()
    world.stasis("image", "delete", "small")


if __name__ == "__main__":
    sys.exit(one_world.main(run))
