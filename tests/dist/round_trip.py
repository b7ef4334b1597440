"""One program on softgpu, from the tarball or the Debian packages, on a small root: suspended, resumed, dumped, ended,
restored, finished."""

import os
import pathlib
import re
import signal
import subprocess
import time
from collections.abc import Callable

_VERB_TIMEOUT_S = 60
_WAIT_S = 60
_LOG = pathlib.Path("/tmp/vector.log")


def _wait(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not done():
        if time.monotonic() > deadline:
            log = _LOG.read_text() if _LOG.exists() else "(no log)"
            raise TimeoutError(f"waited {_WAIT_S} s for {what}; the program's log ends with:\n{log[-500:]}")
        time.sleep(0.02)


def _rounds() -> int:
    return len(re.findall(r"^ROUND ", _LOG.read_text(), re.MULTILINE)) if _LOG.exists() else 0


def _more_rounds() -> None:
    goal = _rounds() + 3
    _wait(lambda: _rounds() >= goal, "three more rounds")


def _pids_of(program: pathlib.Path) -> list[int]:
    """Returns the pids of running processes of this program. A zombie has no exe link."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.readlink(entry / "exe") == str(program):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def steps(tree: pathlib.Path, command: pathlib.Path | None = None) -> None:
    """`command` is the program stasis, by default that of the tree."""
    program = tree / "workloads/vector"
    environment = {
        "LD_LIBRARY_PATH": str(tree / "lib/softgpu"),
        "STASIS_CUDA_LIBRARY": str(tree / "lib/softgpu/libcuda.so.1"),
        "STASIS_STATE_DIR": "/tmp/state",
        # A helper that stays would keep this root in use.
        "STASIS_HELPER_IDLE_S": "0",
    }

    def stasis(*words: str) -> None:
        print(f"$ stasis {' '.join(words)}", flush=True)
        subprocess.run([command or tree / "bin/stasis", *words], check=True, env=environment, timeout=_VERB_TIMEOUT_S)

    try:
        stasis("run", "--job", "vector", "--log", str(_LOG), "--", str(program), "--memory", "16M")
        _more_rounds()
        stasis("suspend", "vector")
        stasis("resume", "vector")
        _more_rounds()
        stasis("dump", "vector", "--name", "first")
        _wait(lambda: not _pids_of(program), "the end of the dumped program")
        stasis("restore", "vector", "--log", str(_LOG))
        _more_rounds()
        (pid,) = _pids_of(program)
        os.kill(pid, signal.SIGTERM)
        _wait(lambda: "EXIT-SUCCESS" in _LOG.read_text(), "the program's own check")
    finally:
        for pid in _pids_of(program):
            os.kill(pid, signal.SIGKILL)
