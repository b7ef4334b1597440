"""criu_test.py --build DIR: plain CRIU with our plugin: dump, restore, and what can go wrong between."""

import os
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "stage"))

import cases
import processes
from plugin import Plugin
from processes import wait_until
from world import demand


def with_daemon(case):
    def run(world, *args):
        plugin = Plugin(world)
        plugin.start_daemon()
        try:
            case(world, plugin, *args)
        finally:
            plugin.end_daemon()
            import shutil
            shutil.rmtree(plugin.folder)
            for folder in world.folder.glob("criu-image-*"):
                shutil.rmtree(folder)
    run.__name__ = case.__name__
    return run


@with_daemon
def there_and_back(world, plugin, workload, agent):
    program = plugin.spawn(f"{workload}", workload, "--memory", "24M", "--interval", "10", agent=agent == "agent")
    program.expect_running()
    folder = plugin.dump(program)
    demand((folder / "stasis" / "manifest.pb").exists(), f"no manifest: {list((folder / 'stasis').iterdir())}")
    plugin.await_idle()
    world.expect_clean()
    plugin.restore(program, folder)
    program.expect_running()
    plugin.await_idle()
    world.expect_clean()
    folder = plugin.dump(program, "-R")
    program.expect_running()
    folder = plugin.dump(program, folder=folder)
    plugin.restore(program, folder)
    program.expect_running()
    program.finish()


CASES = [
    (there_and_back, "vector", "agent"),
    (there_and_back, "vector", "driver"),
    (there_and_back, "tree", "agent"),
]

sys.exit(cases.main(CASES))
