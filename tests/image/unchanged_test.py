"""A suspend copies only data changed since the last one, and no zeros: checks the amount, and that
the resumed data is right even after kills in between. Uses the real programs on softgpu, whose new
memory is full of garbage."""

import os
import pathlib
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))

import one_world  # noqa: E402
import isolate  # noqa: E402
from programs import Program  # noqa: E402
from world import demand  # noqa: E402

MIB = 1 << 20
MEMORY = 64 * MIB
ZEROS = 32 * MIB
CHANGED = 4 * MIB  # one percent, and the blocks at its edges
BLOCK = 2 * MIB


def suspend(world, **options):
    world.stasis("suspend", "one", "--json", **options)
    account = world.last.json()
    demand(account["path"] == "shared", lambda: f"not by the data plane: {world.last}")
    saved = account["saved"]
    demand(sum(saved.values()) == account["shared_bytes"], f"{saved} are not {account['shared_bytes']}")
    return saved


def resume(world, program):
    world.stasis("resume", "one")
    program.expect_running()


def whole(saved):
    demand(saved["unchanged_bytes"] == 0 and saved["copied_bytes"] >= MEMORY - BLOCK, f"not all was copied: {saved}")
    demand(saved["zero_bytes"] >= ZEROS - BLOCK, f"zeros were copied: {saved}")


def part(saved):
    demand(0 < saved["copied_bytes"] <= CHANGED, f"more was copied than has changed: {saved}")
    demand(saved["unchanged_bytes"] >= MEMORY - CHANGED - BLOCK, f"{saved}")
    demand(saved["zero_bytes"] >= ZEROS - BLOCK, f"zeros were copied: {saved}")


def saved_in_pause(saved):
    demand(saved["copied_bytes"] <= CHANGED, f"more was copied than has changed: {saved}")
    demand(saved["zero_bytes"] >= ZEROS - BLOCK, f"zeros were copied: {saved}")


def ahead_of_the_pause(world, program):
    """The first dump of a program that stays running copies its data before the pause."""
    world.stasis("arena", "free")
    world.stasis("dump", "one", "--name", "one-0", "--leave-running", "--json")
    account = world.last.json()
    saved_in_pause(account["saved"])
    ahead = [p["bytes"] for p in account["phases"] if p["name"] == "data-precopy"]
    demand(ahead and ahead[0] >= MEMORY - BLOCK, f"not copied ahead: {account}")
    world.stasis("image", "verify", "one-0")
    program.expect_running()


def only_what_changed(world, program):
    whole(suspend(world))
    resume(world, program)
    for _ in range(2):
        saved = suspend(world)
        part(saved)
        resume(world, program)
    # A dump does not copy unchanged data again, and the arena keeps the data after the dump.
    world.stasis("dump", "one", "--name", "one-1", "--leave-running", "--json")
    # The program runs while its data is copied, so the pause may have nothing left to copy.
    saved_in_pause(world.last.json()["saved"])
    demand(world.last.json()["stored"]["zero_bytes"] >= ZEROS - BLOCK, f"{world.last}")
    world.stasis("image", "verify", "one-1")
    program.expect_running()
    part(suspend(world))
    resume(world, program)
    return saved


def a_byte_is_seen(world, program, before):
    os.kill(program.pid, signal.SIGUSR2)
    program.expect_running()
    program.expect_running()
    saved = suspend(world)
    # One block of data, and one that was zero.
    demand(saved["copied_bytes"] == before["copied_bytes"] + 2 * BLOCK, f"{before}, then {saved}")
    demand(saved["zero_bytes"] == before["zero_bytes"] - BLOCK, f"{before}, then {saved}")
    resume(world, program)


def places(world, phases, some):
    """Returns PHASE:WHEN where a command dies: `some`, or before and after each of the phases."""
    return [f"{phase}:{when}" for phase in phases for when in ("before", "after")] if world.every else some


def killed(world, program):
    """Kills a suspend before and during the write to the arena, after it, and after the commit."""
    for place in places(world, ("data-room", "gate-close", "data-export", "data-save", "data-commit", "record", "data-free"),
                        ("data-room:after", "data-save:before", "data-save:after", "data-commit:after", "record:after")):
        world.stasis("suspend", "one", expect=None, env={"STASIS_FAULT": f"{place}:die"})
        demand(world.last.code == -9, lambda: f"it was not killed: {world.last}")
        world.stasis("recover")
        if program.state() == "suspended":
            world.stasis("resume", "one")
        program.expect_running()
        # Afterwards the hashes of the arena's blocks are right, or there are none.
        suspend(world)
        resume(world, program)
        part(suspend(world))
        resume(world, program)


def failed(world, program):
    """A suspend fails and is rolled back without a kill: if nothing was written, the arena is still known."""
    for phase, kept in (("data-room:after", True), ("gate-close:before", True), ("data-save:after", False),
                        ("data-commit:before", False), ("record:before", False)):
        world.stasis("suspend", "one", expect=1, env={"STASIS_FAULT": f"{phase}:fail"})
        program.expect_running()
        (part if kept else whole_after)(suspend(world))
        resume(world, program)


def whole_after(saved):
    demand(saved["unchanged_bytes"] == 0, f"data of a failed suspend was used: {saved}")


def resumes_killed(world, program):
    for place in places(world, ("data-load", "data-return", "forget"), ("data-load:after", "data-return:after")):
        suspend(world)
        world.stasis("resume", "one", expect=None, env={"STASIS_FAULT": f"{place}:die"})
        demand(world.last.code == -9, lambda: f"it was not killed: {world.last}")
        world.stasis("recover")
        if program.state() == "suspended":
            world.stasis("resume", "one")
        program.expect_running()
        part(suspend(world))
        resume(world, program)


def another_key(world, program):
    """Hashes with a lost key are useless, but zero blocks stay known. The arena has garbage in place of them."""
    demand(suspend(world)["zero_bytes"] >= ZEROS - 2 * BLOCK, "nothing is zero")
    (world.state / "data" / "secret.key").unlink()
    program.dump(name="one-2")
    demand(world.stasis("image", "inspect", "one-2", "--json").code == 0, "it cannot be read")
    program.restore("one-2")
    program.expect_running()
    whole(suspend(world))
    resume(world, program)


def without_the_kernel(world, program):
    """If the kernel that hashes blocks cannot be loaded, everything is copied, and the account says so."""
    folder = world.folder / "no-kernel"
    folder.mkdir()
    kernel = world.build / "lib/softgpu/block_hashes.softgpu.so"
    (folder / "empty").write_bytes(b"")
    isolate.mount(str(folder / "empty"), str(kernel), flags=4096)
    try:
        saved = suspend(world)
        demand(saved["copied_bytes"] >= MEMORY + ZEROS, f"{saved}")
        demand("did not search for zero" in world.last.out, lambda: f"{world.last}")
        resume(world, program)
    finally:
        isolate.unmount(str(kernel))


def full_of_garbage(world):
    """Fills the memory that the first suspend uses with garbage: skipped blocks must not be restored from it."""
    world.stasis("arena", "reserve", "128MiB")
    path = world.stasis("arena", "ls", "--json").json()["arenas"][0]["path"]
    with open(path, "r+b") as file:
        file.write(b"\xa5" * (128 * MIB))


def run(world):
    full_of_garbage(world)
    program = Program(world, "one", world.build / "tests" / "image_drift",
                      ["--memory", MEMORY, "--allocation", ZEROS, "--interval", 5, "--port", 1]).run()
    before = only_what_changed(world, program)
    a_byte_is_seen(world, program, before)
    another_key(world, program)
    failed(world, program)
    killed(world, program)
    resumes_killed(world, program)
    without_the_kernel(world, program)
    ahead_of_the_pause(world, program)
    program.finish()
    for image in ("one-0", "one-1", "one-2"):
        world.stasis("image", "delete", image)
    # Free the arena, which belonged to a program that has ended.
    world.stasis("recover")
    arenas = world.stasis("arena", "ls", "--json").json()["arenas"]
    demand(all(a["state"] == "free" for a in arenas), f"{arenas}")


if __name__ == "__main__":
    sys.exit(one_world.main(run))
