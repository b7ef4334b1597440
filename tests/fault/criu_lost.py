"""criu_lost.py --build DIR: kills CRIU after the commit, when it has killed a given number of the
program's processes.

If CRIU has killed none, the image is complete and the program continues, however many of its processes exit by
themselves meanwhile. The command reports this with exit code 6, because the image exists and the state is therefore not
as before. If CRIU has killed any process, the dump is finished, because part of a program is useless.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))

from criu_to_die import dying_behind_commit  # noqa: E402
from one_world import main  # noqa: E402
from processes import tree  # noqa: E402
from programs import Program  # noqa: E402
from world import demand  # noqa: E402


def whole(world, program, name, command):
    demand("CRIU ended without an answer" in command.out, f"the message does not say that CRIU was lost:\n{command}")
    demand(program.state() == "dumped", f"the job is {program.state()}")
    world.stasis("image", "verify", name)
    world.expect_clean()
    world.stasis("restore", program.name)
    program.find_pid()
    program.expect_running()


def runs_on(world, program, name):
    """CRIU dies before it kills any process."""
    command = world.stasis("dump", program.name, "--name", name, env=dying_behind_commit(world, name, 0), expect=6)
    demand(f"{world.images}/{name} is complete" in command.err and "is as it was before" in command.err, command)
    program.expect_running()
    world.stasis("image", "verify", name)
    world.stasis("recover")
    world.expect_clean()


# Processes exit by themselves all the time.
RESTLESS = """echo READY
n=0
(while :; do sleep 1.3; done) &
trap 'kill $!; exit' TERM
while :; do sleep 0.9; n=$((n+1)); echo ROUND $n 1; done
"""


def run(world):
    script = world.folder / "restless.sh"
    script.write_text(RESTLESS)
    restless = Program(world, "restless", "/bin/sh", [script]).run()
    for attempt in range(3):
        runs_on(world, restless, f"restless-{attempt}")
    world.stasis("kill", "restless", "-s", "KILL")

    program = Program(world, "job", "tree", ["--interval", "10"]).run()
    members = len(tree(program.pid))
    demand(members > 2, f"it has {members} processes")

    runs_on(world, program, "none")

    for after in (1, members - 1, members):
        name = f"after-{after}"
        command = world.stasis("dump", "job", "--name", name, env=dying_behind_commit(world, name, after))
        whole(world, program, name, command)
    program.finish()


sys.exit(main(run))
