"""both_lost.py --build DIR: kills Stasis and its CRIU together at various points of a dump and of a
restore, and then runs `stasis recover`.

Before the commit the program runs on, and a process that died with CRIU is named. After the commit
the image is complete: if CRIU had begun to kill the program, the rest is killed if its shim knows
this, and is named otherwise. Nothing is left of a partly restored program.
"""

import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))

import processes  # noqa: E402
from criu_to_die import dying_behind_commit, dying_criu  # noqa: E402
from one_world import main  # noqa: E402
from processes import tree, wait_until  # noqa: E402
from programs import Program  # noqa: E402
from world import demand  # noqa: E402

IMAGE = "image"
LOUD = "--criu-opt=log-level=4"  # the points are messages in the log
UNDONE = "undone: the program is as it was before"

DUMP_PLACES = [
    "Running pre-dump scripts",
    "Seized task",                  # one task
    "Putting parasite blob into",   # all tasks are stopped
    "Dumping pages (type",          # by injected code in the program
    "Running post-dump scripts",    # the injected code is gone, everything is written
]
RESTORE_PLACES = [
    "Forking task with",
    "Restoring resources",             # in a process that is becoming the program's
    "Running post-restore scripts",    # all processes exist
    "Running pre-resume scripts",
    "Tasks resumed",
]

# A shell whose children do not die with it.
FAMILY = """sleep 1000 & sleep 1000 &
echo CHILD $!
echo READY
wait
"""


def struck(world, *args, env):
    world.stasis(*args, env=env, expect=-9)


def recovered(world, *patterns):
    done = world.stasis("recover")
    for pattern in patterns:
        demand(re.search(pattern, done.out), f"the message lacks '{pattern}':\n{done}")
    world.expect_clean()
    return done.out


def held_threads(pid):
    """Returns the threads in a state that CRIU may have left: traced, stopped, or with all signals
    blocked."""
    found = set()
    for member in tree(pid):
        for thread in pathlib.Path(f"/proc/{member}/task").iterdir():
            text = processes.told(member, f"task/{thread.name}/status") or b""
            if re.search(rb"^(State:\s+[Tt]|TracerPid:\s+[1-9]|SigBlk:\s+f{8})", text, re.M):
                found.add(int(thread.name))
    return found


def threads_of(program):
    every = {int(thread.name) for member in tree(program.pid)
             for thread in pathlib.Path(f"/proc/{member}/task").iterdir()}
    return every, held_threads(program.pid)


def runs_on(world, program, threads):
    """Checks that the program continues. `threads`: the result of threads_of() before the kill."""
    every, before = threads
    held = (held_threads(program.pid) - before) & every
    demand(not held, f"threads of it are held: {held}")
    demand(not (world.images / IMAGE).exists(), "there is an image")
    program.expect_running()


def dump_is_undone(world, program):
    threads = threads_of(program)
    for number, text in enumerate(DUMP_PLACES):
        env = dying_criu(world, f"dump-{number}", says=text, together=1)
        struck(world, "dump", "tree", "--name", IMAGE, LOUD, env=env)
        recovered(world, rf"^dump tree: {UNDONE}$")
        runs_on(world, program, threads)
    env = dying_criu(world, "leave-running", says=DUMP_PLACES[3], together=1)
    struck(world, "dump", "tree", "--name", IMAGE, "--leave-running", LOUD, env=env)
    recovered(world, UNDONE)
    runs_on(world, program, threads)


def at_commit(world, program):
    """CRIU waits for an answer that never comes."""
    hold = world.folder / "hold"
    hold.touch()
    threads = threads_of(program)
    command = world.begin("dump", "tree", "--name", IMAGE, env={"STASIS_FAULT": f"commit:before:hold={hold}"})
    world.await_phase("commit")
    for pid in [command.pid, *processes.called("criu")]:
        processes.end(pid)
    demand(command.wait().code == -9, command)
    recovered(world, UNDONE)
    runs_on(world, program, threads)


def leaves_one_behind(world, program):
    """A child process of CRIU has the lock too: the process that blocks recovery is named."""
    threads = threads_of(program)
    env = dying_criu(world, "beside", says=DUMP_PLACES[2], together=1)
    script = pathlib.Path(env["STASIS_CRIU"])
    script.write_text(script.read_text().replace("\nexec", '\n[ "$2" != swrk ] || sleep 1000 &\nexec'))
    struck(world, "dump", "tree", "--name", IMAGE, LOUD, env=env)
    beside = processes.called("sleep")  # CRIU also runs to be queried for its features
    said = world.stasis("recover", expect=6).out
    demand(any(f"process {pid} (sleep) still holds the journal lock" in said for pid in beside), f"the blocking process is not named:\n{said}")
    for pid in beside:
        processes.end(pid)
    recovered(world, UNDONE)
    runs_on(world, program, threads)


def by_the_daemon(world, program):
    threads = threads_of(program)
    world.daemon = True
    struck(world, "dump", "tree", "--name", IMAGE, LOUD,
           env=dying_criu(world, "daemon", says=DUMP_PLACES[3], together=1))
    demand("stasis recover" in world.last.err, f"the message gives no advice:\n{world.last}")
    world.end_daemons()
    world.daemon = False
    recovered(world, UNDONE)
    runs_on(world, program, threads)


def takes_one_with_it(world):
    """One of the program's processes was stopped inside CRIU's code and cannot be restored."""
    script = world.folder / "family.sh"
    script.write_text(FAMILY)
    program = Program(world, "family", "/bin/sh", [script]).run()
    child = int(re.search(r"^CHILD (\d+)$", program.output(), re.M)[1])
    for name, doomed, left in (("child", child, "the rest of the program is as it was before"),
                               ("root", program.pid, "including the first one; the others are as they were before: process ")):
        env = dying_criu(world, name, injects=doomed, together=1)
        struck(world, "dump", "family", "--name", IMAGE, env=env)
        recovered(world, rf"undone: process {doomed} has ended since[,;] {left}")
        demand(not processes.is_alive(doomed), "the process has not ended, so this tests nothing")
        demand(not (world.images / IMAGE).exists(), "there is an image")
    world.stasis("wait", "family", expect=133)
    world.stasis("kill", "family", "-s", "KILL")
    wait_until(lambda: world.reap() or not processes.called("sleep"), 60, "its processes do not end")
    world.stasis("delete", "family")


def behind_commit(world, program):
    """CRIU has killed none of the program's processes, the first, all but one, or all."""
    members = len(tree(program.pid))
    for after in (0, 1, members - 1, members):
        name = f"behind-{after}"
        struck(world, "dump", "tree", "--name", name, env=dying_behind_commit(world, name, after, together=1))
        if after == 0:
            recovered(world, rf"the image {world.images}/{name} is complete; the program was not ended "
                             "and is as it was before")
            program.expect_running()
        else:
            left = members - after
            parts = rf".* the rest \({left} of {members} processes\) was ended now" if left else "$"
            recovered(world, rf"finished: the image {world.images}/{name} is complete{parts}")
            demand(program.state() == "dumped", f"the job is {program.state()}")
        world.stasis("image", "verify", name)
        if after > 0:
            world.stasis("restore", "tree")
            program.find_pid()
            program.expect_running()


def without_a_shim(world):
    """The program has no shim, and its parent has reaped its first process."""
    program = Program(world, "by-hand", "tree", ["--children", 1, "--interval", "10"]).spawn()
    children = processes.children(program.pid)
    env = dying_behind_commit(world, "by-hand", 1, together=1)
    struck(world, "dump", program.pid, "--name", "by-hand", env=env)
    program.child.wait()
    said = recovered(world, rf"image {world.images}/by-hand is complete; the program's first process, "
                            rf"{program.pid}, has ended, by this dump or by itself")
    named = re.search(r"remaining: process ([\d, ]+), as before the dump\. End", said)
    demand(named or all(not processes.is_alive(pid) for pid in children), f"the message does not name the remaining processes: {said}")
    # The children's memory is restored and intact, and they exit with their parent.
    wait_until(lambda: world.reap() or not any(map(processes.is_alive, children)), 60, "they do not run on")
    world.disown(program.pid)
    program.restore("by-hand")
    program.expect_running()
    program.kill()


def restore_is_undone(world, program):
    program.dump(name=IMAGE)
    for number, text in enumerate(RESTORE_PLACES):
        struck(world, "restore", "tree", LOUD, env=dying_criu(world, f"restore-{number}", says=text, together=1))
        recovered(world, rf"undone: the half-restored program was ended, and the image {world.images}/{IMAGE} is unchanged")
        left = processes.called("ring")
        demand(not left, lambda: f"there is {list(map(processes.describe, left))}")
        demand(program.state() == "dumped", f"the job is {program.state()}")
    world.stasis("image", "verify", IMAGE)
    program.restore()
    program.expect_running()


def run(world):
    program = Program(world, "tree", "ring", ["--children", 2, "--memory", "1M", "--interval", "20"]).run()
    dump_is_undone(world, program)
    at_commit(world, program)
    leaves_one_behind(world, program)
    by_the_daemon(world, program)
    takes_one_with_it(world)
    behind_commit(world, program)
    restore_is_undone(world, program)
    program.finish()
    without_a_shim(world)


sys.exit(main(run))
