"""kill_table.py --build DIR PLAN [--all] [--only PHASE]: kills the daemon at each phase of an operation. Without --all
only a middle phase and the last one are tested, because the operation continues in the same way after every phase.

The operation is held until the daemon is dead, and then completes by itself. Its client gets an error that says so.
`ps` of a new daemon shows the right state.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "fault"))

from daemon_fixture import DaemonFixture  # noqa: E402
from stand import Stand, demand, main, processes  # noqa: E402

# Command, options, state before, state after.
PLANS = {
    "suspend": ("suspend", [], "running", "suspended"),
    "resume": ("resume", [], "suspended", "running"),
    "dump": ("dump", [], "running", "dumped"),
    "dump-leave-running": ("dump", ["--leave-running"], "running", "running"),
    "restore": ("restore", [], "dumped", "running"),
}


def kill_at(stand, fixture, verb, options, before, after, phase):
    if not processes.is_alive(fixture.pid):
        fixture.start_again()
    stand.prepare(before)
    fixture.hold(phase)
    operation = stand.begin(verb, *options)
    fixture.await_phase(phase)
    fixture.kill()
    demand(operation.wait().code == 6, f"the client does not know how the operation ended:\n{operation}")
    for words in ("the daemon has gone away", "continues by itself", "`stasis ps -a`"):
        demand(words in operation.err, f"the message lacks '{words}':\n{operation}")
    fixture.let_go(phase)
    fixture.await_workers_end()
    fixture.start_again()
    state = stand.program.state()
    demand(state == after, f"it is {state}, not {after}")
    demand((verb == "dump") <= stand.image_exists(), "there is no image")
    stand.expect_sound(before, verb, None)


def run(stand: Stand, name):
    verb, options, before, after = PLANS[name]
    stand.prepare(before)
    phases = stand.operate(verb, *options, "--dry-run", "--json").json()["planned_phases"]
    if not stand.every:
        phases = [phases[len(phases) // 2], phases[-1]]
    fixture = DaemonFixture(stand.world).start_holding(*phases)
    for phase in phases:
        stand.case(f"{name}: the daemon killed at {phase}", kill_at, fixture, verb, options, before, after, phase)
    if processes.is_alive(fixture.pid):
        fixture.drain()


if __name__ == "__main__":
    sys.exit(main(PLANS, run))
