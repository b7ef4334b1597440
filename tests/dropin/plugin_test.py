"""plugin_test.py --build DIR: CRIU with its own unchanged CUDA plugin, and the cuda-checkpoint
replacement on PATH."""

import os
import sys

import tool
from tool import Tool, spawn

import isolate
import one_world
from world import demand


def dump(tool_, program, *words, plugin=True, code=0):
    folder = tool_.image_folder()
    tool_.criu("dump", "-t", program.pid, "-D", folder, *words, plugin=plugin, code=code)
    if code == 0 and "-R" not in words:
        program.await_gone()
    return folder


def restore(tool_, program, folder, plugin=True):
    tool_.criu("restore", "-d", "-D", folder, plugin=plugin)
    program.child = None  # the test environment reaps it now


def there_and_back(tool_, program, **more):
    """The image must be complete: no state of Stasis survives the dump."""
    folder = dump(tool_, program, **more)
    tool_.world.stasis("recover", expect=None)
    tool_.world.stasis("arena", "free")
    restore(tool_, program, folder, **more)
    return folder


def no_gpu_data_outside(world):
    kept = [p.name for p in world.arenas.iterdir() if p.name[0].isdigit()] if world.arenas.is_dir() else []
    demand(not kept, f"GPU data in arenas: {kept}")


def programs(tool_, agent):
    """Dumps and restores twice, once with the program left running in between."""
    for workload in ("vector", "tree"):
        program = spawn(tool_.world, f"{workload}-{agent}", workload, "--memory", "24M", "--interval", "10", agent=agent)
        program.expect_running()
        first = there_and_back(tool_, program)
        program.expect_running()
        dump(tool_, program, "-R")
        program.expect_running()
        folder = dump(tool_, program)
        restore(tool_, program, folder)
        program.expect_running()
        program.finish()
        demand(any(path.name.startswith("inventory") for path in first.iterdir()), "no image")


def came_back(tool_):
    """Memory restored by a resume is converted to the program's own before the driver gets it."""
    for workload in ("vmm", "pool"):
        program = spawn(tool_.world, f"back-{workload}", workload, "--memory", "24M", "--interval", "10", agent=True)
        program.expect_running()
        tool_.world.stasis("suspend", program.pid)
        tool_.world.stasis("resume", program.pid)
        program.expect_running()
        there_and_back(tool_, program)
        program.expect_running()
        # The program is an ordinary one again.
        tool_.world.stasis("suspend", program.pid)
        tool_.world.stasis("resume", program.pid)
        program.expect_running()
        program.finish()


def suspended(tool_):
    """A program suspended by Stasis, which has its data: the plugin would skip the process, and the image would be
    useless."""
    program = spawn(tool_.world, "away", "vector", "--memory", "24M", "--interval", "10", agent=True)
    program.expect_running()
    tool_.world.stasis("suspend", program.pid)
    folder = dump(tool_, program, code=1)
    log = (folder / "dump.log").read_text()
    demand("suspended by Stasis" in log, lambda: f"the log does not say why:\n{log[-3000:]}")
    tool_.toggle(program.pid)
    program.expect_running()
    there_and_back(tool_, program)
    program.expect_running()
    program.finish()


def before_the_plugin(tool_):
    """Toggle, criu, criu, toggle, as before the plugin existed; and a mix of both."""
    for agent, plugin in ((False, False), (True, False), (True, True)):
        program = spawn(tool_.world, f"toggled-{agent}-{plugin}", "vector", "--memory", "24M", "--interval", "10",
                        agent=agent)
        program.expect_running()
        if agent:
            tool_.world.stasis("suspend", program.pid)
            tool_.world.stasis("resume", program.pid)
        tool_.toggle(program.pid)
        no_gpu_data_outside(tool_.world)
        there_and_back(tool_, program, plugin=plugin)
        if not plugin:
            tool_.toggle(program.pid)
        program.expect_running()
        program.finish()


def run(world):
    mine = Tool(world)
    if not (mine.plugins / "cuda_plugin.so").exists():
        print("SKIPPED: CRIU's CUDA plugin was not built here (it comes with a CRIU that ./run setup builds)")
        sys.exit(isolate.SKIPPED)
    for agent in (False, True):
        programs(mine, agent)
    came_back(mine)
    suspended(mine)
    before_the_plugin(mine)


sys.exit(one_world.main(run))
