#!/usr/bin/env python3
"""A program that blocks every reader of its memory or files: root's commands end nevertheless and
name the program. They need no answer from a FUSE server or program."""

import pathlib
import signal
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "stage"))

import one_world  # noqa: E402
import processes  # noqa: E402
from fuse import FuseFile  # noqa: E402
from processes import wait_until  # noqa: E402
from world import demand  # noqa: E402

# Less than --timeout of a command with several queries; without a deadline the command would never
# end.
ENDS_S = 60


class Unreadable:
    def __init__(self, world, how):
        self.world, self.fuse = world, None
        folder = world.folder / how
        folder.mkdir()
        words = [sys.executable, str(HERE / "programs" / "unreadable.py"), how, str(folder)]
        if how.startswith("fuse"):
            name = "libstasis-agent.so" if how == "fuse-header" else "socket"
            self.fuse = FuseFile(folder / "mounted", name, bytes(4096))
            words.append(str(self.fuse.path))
        out = folder / "out"
        with open(out, "wb") as file:
            self.process = subprocess.Popen(words, env=world.env, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                                            start_new_session=True)
        world.own(self.process.pid)
        wait_until(lambda: "READY" in out.read_text() or self.process.poll() is not None, 60, "it does not start")
        demand(self.process.poll() is None, lambda: f"it ended:\n{out.read_text()}")
        if self.fuse:
            self.fuse.stop_answering()

    @property
    def pid(self):
        return self.process.pid

    def end(self):
        self.process.kill()
        if self.fuse:
            self.fuse.end()
        self.process.wait()
        self.world.disown(self.process.pid)


def expect_refusal(command, pid):
    demand(f"process {pid}" in command.err + command.out, f"it does not name process {pid}:\n{command}")
    demand("hangs" in command.err + command.out, f"it does not say why:\n{command}")


def commands_end(world, pid):
    for words in (["suspend", pid], ["dump", pid], ["dump", pid, "--leave-running"]):
        command = world.stasis(*words, "--timeout", "2", expect=1, seconds=ENDS_S)
        expect_refusal(command, pid)
        demand("Everything is as it was before" in command.err, f"the message does not give the state:\n{command}")
    command = world.stasis("check", pid, "--timeout", "2", expect=5, seconds=ENDS_S)
    expect_refusal(command, pid)
    # These commands only have to end.
    world.stasis("gpu", "state", pid, expect=None, seconds=ENDS_S)
    world.stasis("manage", pid, "--job", f"job-{pid}", expect=None, seconds=ENDS_S)
    if world.last.code == 0:
        world.stasis("ps", seconds=ENDS_S)


def ctrl_c_ends_it(world, pid):
    command = world.begin("dump", pid, "--timeout", "600")
    wait_until(lambda: any((processes.stat(child) or ("",))[0] == "stasis" for child in processes.children(command.pid)),
               60, lambda: f"it does not look at the program:\n{command}")
    command.process.send_signal(signal.SIGINT)
    command.wait(ENDS_S)
    demand(command.code == 1 and "cancelled" in command.err, f"exit code {command.code}:\n{command}")


def restore_ends(world):
    """The image's program has mapped a file on a file system that does not answer."""
    program = subprocess.Popen(["sleep", "1000"], env=world.env, cwd=world.folder, start_new_session=True,
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    world.own(program.pid)
    wait_until(lambda: processes.stat(program.pid)[0] == "sleep", 60, "it does not start")
    world.stasis("dump", program.pid, "--name", "needing")
    program.wait()
    world.disown(program.pid)
    image = world.images / "needing"
    fuse = FuseFile(world.folder / "needed", "library.so", bytes(4096))
    try:
        subprocess.run([world.build / "tests" / "security_forge", image, "--key",
                        world.state / "data" / "secret.key", "--needs", fuse.path], check=True)
        fuse.stop_answering()
        command = world.stasis("restore", image, "--job", "back", "--timeout", "2", expect=1, seconds=ENDS_S)
        demand(str(fuse.path) in command.err, f"it does not name the file:\n{command}")
        demand("hangs" in command.err, f"it does not say why:\n{command}")
    finally:
        fuse.end()
    world.stasis("image", "delete", image)


def run(world):
    world.stasis("gpu", "ls")  # so that the broker is not a child of the programs
    hows = ["header"]
    if pathlib.Path("/dev/fuse").exists():
        hows += ["fuse-header", "fuse-socket"]
        restore_ends(world)
    for how in hows:
        program = Unreadable(world, how)
        try:
            commands_end(world, program.pid)
            ctrl_c_ends_it(world, program.pid)
        except Exception:
            print(f"{how}:")
            raise
        finally:
            program.end()
        world.stasis("recover")
        world.expect_clean()


if __name__ == "__main__":
    sys.exit(one_world.main(run))
