"""kill_table.py --build DIR PLAN [--only PHASE]: kill -9 of the daemon at every phase of an operation.

The operation waits there until the daemon has gone, and then goes on by itself: it does what it was asked for, and
who asked is told where it stands. A new daemon finds everything as `ps` says.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "fault"))

from house import House  # noqa: E402
from stand import Stand, demand, main, processes  # noqa: E402

# Verb, options, the state before, the state after.
PLANS = {
    "suspend": ("suspend", [], "running", "suspended"),
    "resume": ("resume", [], "suspended", "running"),
    "dump": ("dump", [], "running", "dumped"),
    "dump-leave-running": ("dump", ["--leave-running"], "running", "running"),
    "restore": ("restore", [], "dumped", "running"),
}


def kill_at(stand, house, verb, options, before, after, phase):
    if not processes.is_alive(house.pid):
        house.start_again()
    stand.prepare(before)
    house.hold(phase)
    operation = stand.begin(verb, *options)
    house.await_phase(phase)
    house.kill()
    demand(operation.wait().code == 6, f"its end is not known to who asked:\n{operation}")
    for words in ("the daemon has gone away", "goes on by itself", "`stasis ps -a`"):
        demand(words in operation.err, f"it does not say '{words}':\n{operation}")
    house.let_go(phase)
    house.await_workers_end()
    house.start_again()
    state = stand.program.state()
    demand(state == after, f"it is {state}, not {after}")
    demand((verb == "dump") <= stand.image_exists(), "there is no image")
    stand.expect_sound(before, verb, None)


def run(stand: Stand, name):
    verb, options, before, after = PLANS[name]
    stand.prepare(before)
    phases = stand.operate(verb, *options, "--dry-run", "--json").json()["planned_phases"]
    house = House(stand.world).start_holding(*phases)
    for phase in phases:
        stand.case(f"{name}: the daemon killed at {phase}", kill_at, house, verb, options, before, after, phase)
    if processes.is_alive(house.pid):
        house.drain()


if __name__ == "__main__":
    sys.exit(main(PLANS, run))
