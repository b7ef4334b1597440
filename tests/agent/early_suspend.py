#!/usr/bin/env python3
"""Suspends a program within its first milliseconds and resumes it.

The first case forces one order of events: the suspend chooses its path before the program has
allocated anything, and the driver then locks the program in the middle of its first allocation.
Later rounds suspend a program as soon as `stasis run` has returned, at whatever point it is.

  early_suspend.py --build build/dev [ROUNDS]
"""

import argparse
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))
import isolate  # noqa: E402
import processes  # noqa: E402
from processes import wait_until  # noqa: E402
from programs import Program  # noqa: E402
from world import Failed, World, demand, isolate_keep  # noqa: E402

RESUME_S = 60


def start(world, name, env=None):
    """Unlike Program.run, does not wait until the program is ready."""
    program = Program(world, name, "counter", ["--memory", "64M"])
    log = world.folder / f"{name}.log"
    world.stasis("run", "--json", "--job", name, "--log", log, "--", *program.words, env=env)
    program.pid = world.last.json()["pid"]
    program.is_job = True
    program.files = [log]
    return program


def expect_back(world, program):
    world.stasis("resume", program.name, seconds=RESUME_S)
    program.await_output(r"^READY$")
    program.expect_running()


def end(world, program):
    program.kill()
    world.stasis("wait", program.name, expect=None)
    world.stasis("delete", program.name)


def hold(world, number):
    world.gpu_folder.mkdir(mode=0o700, exist_ok=True)
    (world.gpu_folder / f"hold.{number}").touch()


def release(world, number):
    (world.gpu_folder / f"hold.{number}").unlink()


def await_held(world, number):
    wait_until((world.gpu_folder / f"held.{number}").exists, 60, f"no call has reached hold {number}")


def locked_in_its_first_allocation(world):
    hold(world, 1)
    hold(world, 2)
    program = start(world, "held", {"SOFTGPU_FAULT": "cuDevicePrimaryCtxRetain=hold(1),cuMemCreate:1=hold(2)"})
    await_held(world, 1)
    before_lock = world.folder / "before-lock"
    before_lock.touch()
    suspend = world.begin("suspend", program.name, env={"STASIS_FAULT": f"gpu-lock:before:hold={before_lock}"})
    world.await_phase("gpu-lock")
    release(world, 1)
    await_held(world, 2)
    before_lock.unlink()
    suspend.wait()
    demand(suspend.code == 0, lambda: f"{suspend}")
    release(world, 2)  # from the test's hold to the driver's lock
    demand(program.state() == "suspended", lambda: f"it is {program.state()}")
    expect_back(world, program)
    end(world, program)


def one_round(world, number):
    # Without a broker, cuInit starts one, which makes the program's first calls slower.
    wait_until(lambda: world.reap() or not processes.called("softgpu-broker"), 60, "softgpu's broker does not end")
    program = start(world, f"early-{number}")
    time.sleep(number % 20 * 0.004)  # varies the moment of the suspend
    # A process without any driver call is rejected, because it has nothing on a GPU.
    wait_until(lambda: world.stasis("suspend", program.name, expect=(0, 5)).code == 0, 60,
               "the program never uses a GPU")
    demand(program.state() == "suspended", lambda: f"it is {program.state()}")
    expect_back(world, program)
    end(world, program)


def run(world, rounds):
    locked_in_its_first_allocation(world)
    stuck = 0
    for number in range(rounds):
        try:
            one_round(world, number)
        except (Failed, processes.Late) as error:
            stuck += 1
            print(f"round {number}: {error}", flush=True)
            world.stasis("kill", "-s", "KILL", f"early-{number}", expect=None)
            world.stasis("wait", f"early-{number}", expect=None)
            world.stasis("delete", f"early-{number}", expect=None)
    print(f"{rounds} rounds, {stuck} failed", flush=True)
    demand(stuck == 0, f"{stuck} of {rounds} programs did not come back")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("rounds", nargs="?", type=int, default=10)
    options = parser.parse_args()
    isolate.enter(isolate_keep(options.build))
    world = World(options.build)
    begun = time.monotonic()
    try:
        run(world, options.rounds)
        world.expect_clean()
        world.close()
    except (Failed, processes.Late) as error:
        print(f"{error}\nThe last commands:\n{world.transcript()}")
        return 1
    print(f"all tests passed ({time.monotonic() - begun:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
