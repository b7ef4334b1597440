"""A test that is one function of a world of its own: `sys.exit(one_world.main(run))`."""

import argparse
import traceback

import isolate
import processes
from world import Failed, World, isolate_keep


def main(run, last_commands=12, env=None):
    """Takes --build. `env` is what the world's commands have besides; of a test that fails, so many of its last
    commands are shown. The exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    options = parser.parse_args()
    isolate.enter(isolate_keep(options.build))
    world = World(options.build)
    world.env.update(env or {})
    try:
        run(world)
        world.expect_clean()
        world.close()
    except Exception as error:  # noqa: BLE001 - whatever it is, the last commands belong to it
        known = isinstance(error, (Failed, processes.Late))
        print(error if known else traceback.format_exc())
        print(f"The last commands:\n{world.transcript(last_commands)}")
        return 1
    print("all as it should be")
    return 0
