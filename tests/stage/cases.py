"""A test with many cases in one test environment: `sys.exit(cases.main(CASES))`. A failed case does
not prevent the others."""

import argparse
import os
import time
import traceback

import isolate
import processes
from world import Failed, World, isolate_keep


def start_over(world):
    """After a failure: removes everything, so that the next case starts clean."""
    for pid in processes.all_pids():
        if pid != os.getpid() and processes.is_alive(pid):
            processes.end(pid)
    world.reap_all()
    world.forget_state()


def main(cases):
    """Takes --build DIR [--only WORD] [--all]. Each case is a function that gets the test environment
    and the case's further arguments. With --all `world.every` is set, as in the nightly run. Returns
    the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--all", action="store_true")
    options = parser.parse_args()
    build = os.path.abspath(options.build)
    isolate.enter(isolate_keep(build))
    failed = []
    world = World(build)
    world.every = options.all
    for function, *args in cases:
        name = " ".join([function.__name__, *(getattr(a, "__name__", str(a)) for a in args)])
        if options.only not in name:
            continue
        began, commands = time.monotonic(), len(world.log)
        try:
            function(world, *args)
            world.expect_clean()
        except Exception as error:  # noqa: BLE001 - the other cases are run all the same
            failed.append(name)
            print(str(error) if isinstance(error, (Failed, processes.Late)) else traceback.format_exc())
            print("\n".join(str(command) for command in world.log[commands:][-12:]))
            start_over(world)
        print(f"{time.monotonic() - began:6.2f} s  {'FAILED' if name in failed else 'ok':6}  {name}", flush=True)
    try:
        world.close()
    except Failed as error:
        failed.append(str(error))
    print(f"{len(failed)} failed" + "".join(f"\n  {name}" for name in failed))
    return 1 if failed else 0

