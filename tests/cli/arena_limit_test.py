"""arena_limit_test.py --build DIR: GPU data that does not fit into host memory goes through files in the store at a dump,
and a restore loads it through a few buffers. Both stay below the memory limit of their control group."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))

import isolate  # noqa: E402
import one_world  # noqa: E402
from control_groups import Group  # noqa: E402
from file_systems import file_system  # noqa: E402
from programs import Program  # noqa: E402
from world import demand  # noqa: E402

MIB = 1 << 20
LIMIT = 300 * MIB
DATA = 512 * MIB
ON_DISK = "GPU data went through files in"


def limited(world, group, *words, expect=0, gpu=0):
    """Runs a command in the group, which has less memory than the program has on its GPU. `gpu`: memory on the software
    GPU that the command allocates, and that counts as host memory."""
    group.limit_memory(LIMIT + gpu)
    world.shell(group.command(["stasis", *words]), expect=expect)
    demand(group.most_memory() <= LIMIT + gpu, f"{group.most_memory() >> 20} MiB of memory were used")
    demand(group.killed() == 0, "the kernel has killed a process of the group")
    return world.last


def below_the_limit(world, group, store):
    job = Program(world, "job", "counter", ["--memory", "512M"]).run()
    limited(world, group, "suspend", "job", expect=1)
    demand("group has only" in world.last.err, f"{world.last}")
    demand(job.send("x") == "101", "the counter does not count")
    done = limited(world, group, "dump", "job", "-d", store, "--name", "first")
    demand(f"512 MiB of {ON_DISK} {store}" in done.out + done.err, f"{done}")
    demand(str(group.folder) in done.out + done.err, f"the limit is not named: {done}")
    world.expect_clean()
    world.stasis("image", "verify", store / "first")
    limited(world, group, "restore", store / "first", "--job", "job", gpu=DATA)
    job.find_pid()
    demand(job.send("x") == "102", "the counter does not continue")
    demand(job.send("verify").startswith("OK"), "the memory has changed")
    # The program continues, and the next image shares the blocks of the first.
    done = limited(world, group, "dump", "job", "-d", store, "--name", "second", "--leave-running", "--json", gpu=DATA).json()
    demand(any(ON_DISK in note for note in done["notes"]), f"{done}")
    demand(done["stored"]["shared_bytes"] > DATA - 4 * MIB, f"{done}")
    demand(job.send("verify").startswith("OK"), "the memory has changed")
    job.finish()


def no_disk(world, group, _):
    """The store is in memory too."""
    job = Program(world, "refused", "counter", ["--memory", "512M"]).run()
    done = limited(world, group, "dump", "refused", "--name", "none", expect=1)
    demand(str(group.folder) in done.err and "is in memory too" in done.err, f"{done}")
    demand("folders.spill" in done.err, f"{done}")
    job.expect_running()
    job.finish()


def several(world, store):
    """Several processes, and a process on two GPUs: the arenas that do not fit go to files."""
    tree = Program(world, "tree", "tree", ["--children", "3", "--memory", "48M", "--interval", "10"]).run()
    done = world.stasis("dump", "tree", "-d", store, "--name", "tree", "--arena-limit", "100M", "--compress", "lz4", "--json")
    notes = " ".join(done.json()["notes"])
    demand(ON_DISK in notes and "--arena-limit allows 100 MiB" in notes, f"{done}")
    demand(not notes.startswith("144 MiB"), f"no arena is in memory: {done}")
    tree.restore(store / "tree", "--arena-limit", "64M")
    tree.expect_running()
    tree.finish()
    peers = Program(world, "peers", "peers", ["--devices", "2", "--memory", "96M", "--interval", "10"]).run()
    world.stasis("dump", "peers", "-d", store, "--name", "peers", "--arena-limit", "64M")
    peers.restore(store / "peers", "--arena-limit", "64M")
    peers.expect_running()
    peers.finish()


def bounds(world, store):
    job = Program(world, "small", "counter", ["--memory", "96M"]).run()
    for size in ("1M", "63M", "1P"):
        for words in (("dump", "small", "-d", store), ("restore", store / "first")):
            done = world.stasis(*words, "--arena-limit", size, expect=2)
            demand("--arena-limit" in done.err and "64 MiB" in done.err or size == "1P", f"{done}")
    for size in ("x", "0", "-1", ""):
        world.stasis("dump", "small", "-d", store, "--arena-limit", size, expect=2)
    # A load through arenas needs all of the memory.
    job.dump("-d", store, "--arena-limit", "64M", name="small")
    done = world.stasis("restore", store / "small", "--job", "small", "--arena-limit", "64M", expect=1,
                        env={"STASIS_RESTORE_DATA": "arena"})
    demand("--arena-limit allows 64 MiB" in done.err and "restore.data is arena" in done.err, f"{done}")
    job.restore(store / "small", "--arena-limit", "64M")
    job.expect_running()
    job.finish()


def buffers_fit(world, group, store):
    """Whatever the limit is, the arenas in memory leave room for the buffers of those in files."""
    job = Program(world, "two", "tree", ["--children", "2", "--memory", "128M", "--interval", "10"]).run()
    through_files = []
    for limit in range(280, 600, 40):
        group.limit_memory(limit * MIB)
        image = store / f"two-{limit}"
        done = world.shell(group.command(["stasis", "dump", "two", "-d", store, "--name", image.name, "--json"])).json()
        through_files.append(any(ON_DISK in note for note in done["notes"]))
        demand(group.killed() == 0, f"the kernel has killed a process of the group at {limit} MiB")
        job.restore(image)
        world.stasis("image", "delete", image)
    demand(through_files[0] and not through_files[-1], f"{through_files}")
    job.expect_running()
    job.finish()


def full_disk(world):
    """The disk has room for the file or the image, but not for both."""
    job = Program(world, "full", "counter", ["--memory", "72M"]).run()
    with file_system(world, world.folder / "store-small", 144 << 20) as store:
        done = world.stasis("dump", "full", "-d", store, "--arena-limit", "64M", expect=1)
        demand("takes disk space beside the image" in done.err, f"{done}")
        demand("gate-close" not in done.err and "data-write" not in done.err, f"the program was stopped: {done}")
        job.expect_running()
        world.expect_clean()
        demand(not list(store.iterdir()), f"left: {list(store.iterdir())}")
    job.finish()


def run(world):
    world.set_gpu(2, "1G")
    store = world.folder / "store-disk"
    with file_system(world, store, 3 << 30, on_disk=True):
        for test in (below_the_limit, no_disk, buffers_fit):
            with Group("memory") as group:
                test(world, group, store)
        bounds(world, store)
        full_disk(world)
        several(world, store)


if __name__ == "__main__":
    try:
        sys.exit(one_world.main(run))
    except isolate.Unable as reason:
        print(f"SKIPPED: {reason}")
        sys.exit(isolate.SKIPPED)
