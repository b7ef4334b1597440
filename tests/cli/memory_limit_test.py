"""memory_limit_test.py --build DIR: GPU data that exceeds the control group's memory limit is
rejected before anything is touched; otherwise the kernel would kill the program or the command in
the middle of the operation."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))

import isolate  # noqa: E402
import one_world  # noqa: E402
from control_groups import Group  # noqa: E402
from programs import Program  # noqa: E402
from world import demand  # noqa: E402

MIB = 1 << 20


def refused(world, group, *words):
    world.shell(group.command(["stasis", *words]), expect=1)
    demand(str(group.folder) in world.last.err, f"the limit is not named: {world.last}")


def run(world):
    with Group("memory") as group:
        job = Program(world, "job", "vector", ["--memory", "128M", "--interval", "10"]).run()
        # Only the command is limited.
        group.limit_memory(100 * MIB)
        refused(world, group, "suspend", "job")
        refused(world, group, "suspend", "job", "--keep-context")
        refused(world, group, "dump", "job", "--name", "none")
        demand(not (world.images / "none").exists(), "there is an image")
        job.expect_running()
        group.limit_memory(400 * MIB)
        world.shell(group.command(["stasis", "suspend", "job"]))
        world.stasis("resume", "job")
        job.expect_running()
        job.finish()
        world.stasis("arena", "free")
        # The program and the command share one limit, so the program's own memory counts too.
        group.limit_memory(240 * MIB)
        world.shell(group.command(["stasis", "run", "--job", "inner", "--", world.workloads / "vector",
                                   "--memory", "128M", "--interval", "10"]))
        inner = Program(world, "inner", "vector", [])
        inner.adopt()
        refused(world, group, "suspend", "inner")
        refused(world, group, "dump", "inner", "--name", "none")
        inner.expect_running()
        group.limit_memory(600 * MIB)
        world.shell(group.command(["stasis", "suspend", "inner"]))
        world.shell(group.command(["stasis", "resume", "inner"]))
        inner.expect_running()
        inner.finish()
        world.stasis("arena", "free")


if __name__ == "__main__":
    try:
        sys.exit(one_world.main(run))
    except isolate.Unable as reason:
        print(f"SKIPPED: {reason}")
        sys.exit(isolate.SKIPPED)
