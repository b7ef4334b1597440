"""The cuda-checkpoint replacement as another tool calls it, and direct use of CRIU."""

import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))

from programs import Program  # noqa: E402
from world import demand  # noqa: E402

SOURCE = pathlib.Path(__file__).resolve().parents[2]
# Makes CRIU assume a GPU: its fault 138 makes the plugin skip the check.
FORCE_PLUGIN = {"CRIU_FAULT": "138"}

# Exit codes for the driver's error numbers.
INVALID_VALUE, OUT_OF_MEMORY, ILLEGAL_STATE = 1, 2, 401 % 256
NOT_READY, NOT_SUPPORTED = 600 % 256, 801 % 256


class Tool:
    def __init__(self, world):
        self.world = world
        self.folder = world.build / "libexec" / "compat"
        self.plugins = SOURCE / ".cache" / "criu" / "lib"
        self.images = 0

    def call(self, *words, code=0, env=None):
        """Runs a command and returns its output: only the answer on stdout, and at most one message
        on stderr."""
        last = self.world.begin(*words, program=self.folder / "cuda-checkpoint", env=env).wait()
        demand(last.code == code, lambda: f"expected exit code {code}:\n{last}")
        if code == 0:
            demand(last.err == "", lambda: f"output besides the answer:\n{last}")
        else:
            demand(last.out == "" and last.err.startswith("cuda-checkpoint: "), lambda: f"no clear message:\n{last}")
            demand(len(last.err.splitlines()) <= 3, lambda: f"too many words:\n{last}")
        return last.out if code == 0 else last.err

    def state(self, pid):
        return self.call("--get-state", "--pid", pid).strip()

    def action(self, name, pid, *more, code=0):
        return self.call("--action", name, "--pid", pid, *more, code=code)

    def toggle(self, pid, *more, code=0, env=None):
        return self.call("--toggle", "--pid", pid, *more, code=code, env=env)

    def criu(self, verb, *words, plugin=False, code=0):
        program = os.environ.get("STASIS_CRIU") or self.world.build / "libexec" / "criu"
        env = {"PATH": f"{self.folder}:{self.world.env['PATH']}", **(FORCE_PLUGIN if plugin else {})}
        folder = self.plugins if plugin else self.world.folder / "tmp"
        # On a busy machine the plugin's calls of the tool may take longer than CRIU's ten seconds
        # in total.
        patience = ["--timeout", "100"] if verb == "dump" else []
        last = self.world.begin(verb, "-v4", *patience, "-L", folder, "-o", f"{verb}.log", *words, program=program, env=env).wait()
        if last.code != code:
            log = pathlib.Path(words[words.index("-D") + 1]) / f"{verb}.log"
            tail = "\n".join(line for line in log.read_text(errors="replace").splitlines()
                             if "rror" in line or "cuda" in line)
            demand(False, f"criu {verb} ended with {last.code}, not {code}:\n{last}\n{tail[-4000:]}")
        self.world.reap()

    def image_folder(self):
        self.images += 1
        folder = self.world.folder / f"by-hand-{self.images}"
        folder.mkdir()
        return folder


def tells(pid, told):
    """Makes the header of the process's agent show, or not show, where the memory is. Headers of older versions do not.
    Requires the opposite state."""
    with open(f"/proc/{pid}/maps") as maps:
        data = [line.split()[0] for line in maps if line.rstrip().endswith("/libstasis-agent.so") and " rw" in line]
    begin, end = (int(word, 16) for word in data[0].split("-"))
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        memory.seek(begin)
        at = begin + memory.read(end - begin).index(b"Stasis agent\r\n") + 28
        memory.seek(at)
        word = memory.read(4)
        demand(bool(word[3] & 0x80) != told, f"the header's word is {word.hex()}")
        memory.seek(at + 3)
        memory.write(bytes([word[3] ^ 0x80]))


def spawn(world, name, workload, *args, agent, env=None):
    """Starts a program without a job, with or without the agent."""
    preload = {"LD_PRELOAD": str(world.build / "lib" / "libstasis-agent.so")} if agent else {}
    return Program(world, name, workload, args).spawn(env={**preload, **(env or {})})
