"""fill_test.py --build DIR: a restore writes large parts of the CPU memory into the processes that CRIU has restored,
before they run. Every kind of memory is compared afterwards. Checks damage, failures and kills of this phase. Uses the
real programs."""

import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))

import one_world  # noqa: E402
from programs import Program  # noqa: E402
from world import demand  # noqa: E402

MIB = 1 << 20
KIB_4 = 4096
MEMORY = 64 * MIB


def filled(account):
    """Returns the bytes of the phase, or None if it did not run."""
    return next((p["bytes"] for p in account["phases"] if p["name"] == "cpu-fill"), None)


def leftovers(world):
    return [str(p) for p in world.folder.rglob(".*.cpu-*")]


def restore(world, program, image, *options):
    """Returns the bytes that were written directly."""
    account = world.stasis("restore", image, "--job", program.name, "--json", *options).json()
    program.find_pid()
    program.expect_running()
    demand(not leftovers(world), f"left: {leftovers(world)}")
    return filled(account)


def every_kind_of_memory(world):
    """What only one process has is written directly: stacks of threads, and memory of the parent and of the child."""
    program = Program(world, "mixed", world.build / "tests" / "image_mixed", ["--memory", MEMORY, "--interval", 5]).run()
    for name, options in (("kinds-1", ()), ("kinds-2", ("--compress", "zstd", "--full")), ("kinds-3", ())):
        program.dump(*options, name=name)
        wrote = restore(world, program, name)
        demand(20 * MIB <= wrote <= 40 * MIB, f"cpu-fill wrote {wrote} bytes")
    program.finish()
    world.stasis("delete", "mixed")


def new_pids(world):
    """In a new pid namespace the processes have other numbers outside."""
    program = Program(world, "apart", world.build / "tests" / "image_heap", ["--memory", MEMORY, "--interval", 20]).run()
    program.dump(name="apart")
    wrote = restore(world, program, "apart", "--new-pidns")
    demand(wrote >= MEMORY, f"cpu-fill wrote {wrote} bytes")
    program.kill()
    world.stasis("wait", "apart", expect=None)
    world.stasis("delete", "apart")


def refused(world, program, *words, env=None, options=(), expect=1):
    """The restore fails with these words, and no process of the program has run."""
    before = program.output()
    world.stasis("restore", "one", "--job", "one", *options, expect=expect, env=env)
    for word in words:
        demand(word in world.last.err, lambda: f"it does not say {word}: {world.last}")
    if expect == -9:
        world.stasis("recover")
    demand(not os.path.exists(f"/proc/{program.pid}"), "the program runs")
    demand(program.output() == before, "the program ran")
    demand(not leftovers(world), f"left: {leftovers(world)}")
    demand(program.state() == "dumped", lambda: f"the program is {program.state()}")


def damage_is_found(world, program):
    """Before the program runs, and by this phase: CRIU's files do not have the page."""
    packs = world.stasis("image", "inspect", "one", "--json").json()["packs"]
    largest = max((p["size_bytes"], p["path"]) for p in packs if p["unit_bytes"] == KIB_4)[1]
    path = world.images / "one" / largest
    offset = path.stat().st_size // 2
    with open(path, "r+b", buffering=0) as file:
        byte = os.pread(file.fileno(), 1, offset)[0]
        os.pwrite(file.fileno(), bytes([byte ^ 4]), offset)
        refused(world, program, "cpu-fill", f"{largest} is damaged", "pages-")
        os.pwrite(file.fileno(), bytes([byte]), offset)


def failures_and_kills(world, program):
    for place in ("cpu-fill:before", "cpu-fill:after"):
        refused(world, program, "cpu-fill", env={"STASIS_FAULT": f"{place}:fail"})
        refused(world, program, env={"STASIS_FAULT": f"{place}:die"}, expect=-9)
    refused(world, program, "cpu-fill", env={"STASIS_FAULT": "cpu-fill:before:hang"}, options=("--timeout", "5"))


def run(world):
    every_kind_of_memory(world)
    new_pids(world)
    program = Program(world, "one", world.build / "tests" / "image_heap", ["--memory", MEMORY, "--interval", 20]).run()
    program.dump(name="one")
    damage_is_found(world, program)
    failures_and_kills(world, program)
    wrote = restore(world, program, "one")
    demand(wrote >= MEMORY, f"cpu-fill wrote {wrote} bytes")
    program.finish()
    world.stasis("delete", "one")
    names = [image["name"] for image in world.stasis("image", "ls", "--json").json()["images"]]
    world.stasis("image", "delete", *names)


if __name__ == "__main__":
    sys.exit(one_world.main(run))
