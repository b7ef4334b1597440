"""criu_lost.py --build DIR: CRIU is killed behind the commit, when it has ended so many of the program's processes.

Before the first: the image is complete and the program runs on, which is said (exit code 6: not as it was before,
for the image is there), however many of its processes end by themselves meanwhile. From the first on the dump is
finished: half a program is of use to nobody.
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
    demand("CRIU ended without an answer" in command.out, f"it does not say that CRIU was lost:\n{command}")
    demand(program.state() == "dumped", f"the job is {program.state()}")
    world.stasis("image", "verify", name)
    world.expect_clean()
    world.stasis("restore", program.name)
    program.find_pid()
    program.expect_running()


def runs_on(world, program, name):
    """CRIU is killed before it kills anybody."""
    command = world.stasis("dump", program.name, "--name", name, env=dying_behind_commit(world, name, 0), expect=6)
    demand(f"{world.images}/{name} is complete" in command.err and "is as it was before" in command.err, command)
    program.expect_running()
    world.stasis("image", "verify", name)
    world.stasis("recover")
    world.expect_clean()


# Somebody of it ends every moment, and of his own accord.
RESTLESS = """echo READY
n=0
(while :; do sleep 0.13; done) &
trap 'kill $!; exit' TERM
while :; do sleep 0.1; n=$((n+1)); echo ROUND $n 1; done
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
