"""A test that is one function with its own test environment: `sys.exit(one_world.main(run))`.

With --all `world.every` is set: long lists of cases are then run completely, as in the nightly run.
"""

import argparse
import traceback

import isolate
import processes
from world import Failed, World, isolate_keep


def main(run, last_commands=12, env=None):
    """Takes --build and --all. `env` is added to the environment of commands. After a failure,
    prints this many of the last commands. Returns the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--all", action="store_true", help="run all cases of long lists")
    options = parser.parse_args()
    isolate.enter(isolate_keep(options.build))
    world = World(options.build)
    world.every = options.all
    world.env.update(env or {})
    try:
        run(world)
        world.expect_clean()
        world.close()
    except Exception as error:  # noqa: BLE001 - for any error, the last commands are printed
        known = isinstance(error, (Failed, processes.Late))
        print(error if known else traceback.format_exc())
        print(f"The last commands:\n{world.transcript(last_commands)}")
        return 1
    print("all tests passed")
    return 0
