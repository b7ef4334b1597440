"""steps_test.py --build DIR: every option of the cuda-checkpoint replacement, valid and invalid,
with and without the agent."""

import os
import signal
import subprocess
import sys
import uuid

from tool import ILLEGAL_STATE, INVALID_VALUE, NOT_READY, NOT_SUPPORTED, OUT_OF_MEMORY, Tool, spawn, tells

import one_world
from processes import is_alive, tree
from world import demand

NOBODY = 2 ** 22 + 1
UNFINISHED_MAP = f"GPU-{uuid.UUID(int=1)}=GPU-{uuid.UUID(int=2)},"


def help_text(tool):
    for words in (["--help"], ["-h"], ["--toggle", "--help"]):
        text = tool.call(*words)
        for option in ("--get-state", "--action", "--toggle", "--get-restore-tid", "--pid", "--timeout", "--device-map"):
            demand(option in text[:2047], f"{option} is not where CRIU looks for it")


def wrong_words(tool, pid):
    """One message names the wrong word; nothing is touched."""
    for words, named in (
            ([], "no operation was given"),
            (["--toggle"], "--pid"),
            (["--toggle", "--pid"], "--pid"),
            (["--toggle", "--pid", "x"], '"x"'),
            (["--toggle", "--pid", "0"], '"0"'),
            (["--toggle", "--pid", "-1"], '"-1"'),
            (["--toggle", "--pid", "99999999999999"], "99999999999999"),
            (["--toggle", "--pid", pid, "more"], '"more"'),
            (["--toggle", "--get-state", "--pid", pid], "only one"),
            (["--frob", "--pid", pid], "--frob"),
            (["-x", "--pid", pid], "-x"),
            (["--action", "frob", "--pid", pid], '"frob"'),
            (["--action", "lock", "--timeout", "soon", "--pid", pid], '"soon"'),
            (["--action", "unlock", "--timeout", "5", "--pid", pid], "--timeout"),
            (["--action", "lock", "--device-map", "a=b", "--pid", pid], "--device-map"),
            (["--action", "restore", "--device-map", "0=1", "--pid", pid], "--device-map"),
            (["--action", "restore", "--device-map", "", "--pid", pid], "--device-map"),
            (["--action", "restore", "--device-map", UNFINISHED_MAP, "--pid", pid], "--device-map"),
            (["--get-state", "--pid", NOBODY], NOBODY)):
        text = tool.call(*words, code=INVALID_VALUE)
        demand(str(named) in text, f"{words}: the message does not say {named}: {text}")


def not_a_user(tool):
    """The plugin asks this for every process of a tree, and relies on the exit code."""
    other = subprocess.Popen(["sleep", "100"])
    tool.world.own(other.pid)
    for words in (["--get-restore-tid"], ["--get-state"], ["--toggle"], ["--action", "lock"]):
        demand("GPU" in tool.call(*words, "--pid", other.pid, code=NOT_SUPPORTED), "why?")
    demand(is_alive(other.pid), "it has ended")
    other.kill()
    other.wait()


def steps(tool, agent):
    program = spawn(tool.world, f"steps-{agent}", "vector", "--memory", "24M", "--interval", "10", agent=agent)
    pid = program.pid
    program.expect_running()
    wrong_words(tool, pid)
    demand(tool.state(pid) == "running", "it is not running any more")
    tid = int(tool.call("--get-restore-tid", "-p", pid))
    demand(tid != pid and os.path.isdir(f"/proc/{pid}/task/{tid}"), f"{tid} is none of its threads")
    for action, state, wrong in (("lock", "locked", "restore"), ("checkpoint", "checkpointed", "lock"),
                                 ("restore", "locked", "checkpoint"), ("unlock", "running", "checkpoint")):
        demand(tool.action(action, pid) == "", "words")
        for name in (pid, tid):
            demand(tool.state(name) == state, f"{tool.state(name)} after {action}, not {state}")
        if (action, wrong) != ("restore", "checkpoint"):
            tool.action(wrong, pid, code=ILLEGAL_STATE)
    program.expect_running()
    # Use a thread id, with all options that CRIU passes.
    tool.action("lock", tid, "--timeout", 10000)
    tool.toggle(pid, code=ILLEGAL_STATE)
    tool.action("unlock", tid)
    tool.toggle(tid)
    demand(tool.state(tid) == "checkpointed", "a toggle")
    tool.toggle(tid)
    program.expect_running()
    # A stopped process cannot answer, and is not asked.
    os.kill(pid, signal.SIGSTOP)
    tool.action("lock", pid, "--timeout", 300, code=ILLEGAL_STATE)
    os.kill(pid, signal.SIGCONT)
    # The program does not become idle in time, so it continues.
    tool.world.gpu_fault("cuCheckpointProcessLock=fail(600)")
    tool.action("lock", pid, "--timeout", 300, code=NOT_READY)
    tool.world.gpu_fault("")
    demand(tool.state(pid) == "running", "it was left locked")
    program.expect_running()
    # The exit code is the driver's error number; a toggle rolls back its first half.
    tool.world.gpu_fault("cuCheckpointProcessCheckpoint=fail(304)")
    tool.toggle(pid, code=304 % 256)
    tool.world.gpu_fault("")
    demand(tool.state(pid) == "running", "it was left locked")
    program.expect_running()
    program.finish()


def other_gpu(tool):
    first, second = (gpu["uuid"] for gpu in tool.world.gpus())
    program = spawn(tool.world, "moves", "vector", "--memory", "24M", "--interval", "10", agent=False)
    swap = f"{first}={second},{second}={first}"
    tool.toggle(program.pid, "--device-map", swap, code=INVALID_VALUE)
    tool.toggle(program.pid)
    tool.action("restore", program.pid, "-d", f"{first}={first[:-1]}f", code=INVALID_VALUE)
    tool.action("restore", program.pid, "-d", swap)
    tool.action("unlock", program.pid)
    program.expect_running()
    used = [gpu["total_bytes"] - gpu["free_bytes"] for gpu in tool.world.gpus()]
    demand(used[0] == 0 < used[1], f"the GPUs hold {used}")
    tool.toggle(program.pid)
    tool.toggle(program.pid, f"--device-map={swap}")
    program.expect_running()
    demand(tool.world.gpus()[1]["free_bytes"] == tool.world.gpus()[1]["total_bytes"], "it did not move back")
    program.finish()


def suspended(tool):
    """A program suspended by Stasis: the replacement resumes it through Stasis."""
    program = spawn(tool.world, "suspended", "vector", "--memory", "24M", "--interval", "10", agent=True)
    pid = program.pid
    tid = tool.call("--get-restore-tid", "--pid", pid).strip()
    for restore in (["--toggle"], ["--action", "restore"]):
        program.expect_running()
        tool.world.stasis("suspend", pid)
        demand(tool.state(pid) == "checkpointed", tool.state(pid))
        tells(pid, False)
        # A caller that uses a thread id is about to make an image.
        demand("stasis dump" in tool.call("--get-state", "--pid", tid, code=ILLEGAL_STATE), "what next?")
        for action in ("lock", "checkpoint", "unlock"):
            tool.action(action, pid, code=ILLEGAL_STATE)
        tool.call(*restore, "--pid", pid)
        tells(pid, True)
        if restore != ["--toggle"]:
            demand(tool.state(pid) == "locked", f"{tool.state(pid)} after a restore")
            tool.action("unlock", pid)
        program.expect_running()
    # Users who want the speed, and use no other tool, can choose this.
    tool.toggle(pid, env={"STASIS_TOGGLE": "suspend"})
    demand([p for p in tool.world.arenas.iterdir() if p.name.startswith(f"{pid}-")], "its data is in no arena")
    demand(tool.state(pid) == "checkpointed", tool.state(pid))
    tool.toggle(pid)
    program.expect_running()
    # Agents of older images do not provide this information and are asked.
    tells(pid, False)
    tool.action("lock", pid, code=NOT_SUPPORTED)
    tool.world.stasis("gpu", "lock", pid)
    tool.world.stasis("gpu", "unlock", pid)
    tells(pid, True)
    program.expect_running()
    # Restored memory is imported; a lock converts it to the program's own if there is space.
    hog = spawn(tool.world, "hog", "vector", "--memory", "180M", "--interval", "10", agent=False)
    tool.action("lock", pid, code=OUT_OF_MEMORY)
    demand(tool.state(pid) == "running", "it was left locked")
    program.expect_running()
    hog.finish()
    tool.action("lock", pid)
    tool.action("checkpoint", pid)
    tool.toggle(pid)
    program.expect_running()
    program.finish()


def shared_with_others(tool):
    """The driver could checkpoint the owner and the importer, but could restore neither."""
    for workload in ("exported", "ipc"):
        program = spawn(tool.world, workload, workload, "--interval", "10", agent=True)
        program.expect_running()
        for pid in tree(program.pid):
            for words in (["--toggle"], ["--action", "lock"]):
                tool.call(*words, "--pid", pid, code=NOT_SUPPORTED)
            demand(tool.state(pid) == "running", "it was touched")
        program.expect_running()
        program.finish()


def run(world):
    world.set_gpu(2, "256M")
    tool = Tool(world)
    help_text(tool)
    not_a_user(tool)
    for agent in (False, True):
        steps(tool, agent)
    other_gpu(tool)
    suspended(tool)
    shared_with_others(tool)


sys.exit(one_world.main(run))
