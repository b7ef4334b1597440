"""terminal_test.py --build DIR [--only WORD]: jobs with a terminal, attached, detached, dumped and
restored."""

import os
import pathlib
import re
import signal
import socket
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))

import cases  # noqa: E402
import processes  # noqa: E402
from guest_job import GUEST, Job  # noqa: E402
from processes import wait_until  # noqa: E402
from screen import PATIENCE_S, REFUSED, VERSION, WELCOME, Client, Screen  # noqa: E402
from world import demand  # noqa: E402


def terminal_of_its_own(world):
    """Input, output, size and exit code; everything is in the log too."""
    job = Job(world)
    screen = job.attached(size=(31, 97)).expect("ready /dev/pts/").expect("31x97")
    screen.type("hello\r").expect("heard hello")
    screen.resize(40, 111)
    screen.expect("window 40x111")
    screen.type("pour 3000\r").expect("poured")
    screen.type("exit 7\r").wait(7)
    text = world.stasis("logs", job.name).out
    for line in ("heard hello", "window 40x111", "line 2999 ", "poured"):
        demand(line in text, f"{line} is not in the log")
    job.finish()


def all_of_the_last_output(world):
    """Output right before the end is shown and logged."""
    job = Job(world)
    screen = job.attached(program=["seq", "20000"]).wait(0)
    for text in (screen.text, (job.folder / "log").read_text()):
        demand(re.findall(r"^(\d+)\r?$", text, re.M) == [str(n) for n in range(1, 20001)], "lines are missing")
    job.finish()


def keys_are_signals(world):
    job = Job(world)
    screen = job.attached().expect("ready")
    screen.type("\x03").expect("interrupted")
    screen.process.send_signal(signal.SIGTERM)
    screen.expect("terminated")
    screen.type("\x1c").wait(128 + signal.SIGQUIT)
    job.finish()


def left_and_come_back(world):
    job = Job(world)
    job.attached().expect("ready").type("one\r").expect("heard one").leave()
    demand(job.inspect()["state"] == "running", "it does not run on")
    # Earlier output is shown first; the size becomes that of the new window.
    screen = job.attach(size=(20, 60)).expect("heard one").expect("window 20x60")
    screen.type("two\r").expect("heard two")
    screen.hang_up()
    screen.wait(0)
    # With other detach keys, the default ones go to the program.
    screen = job.attach("--detach-keys", "x,ctrl-y", size=(20, 60)).expect("heard two")
    screen.expect("window 20x60")  # redrawn, although nothing has changed
    screen.type(b"x1\r").expect("heard x1")
    screen.type(b"x\x19").expect("detached").wait(0)
    screen = job.attach().expect("heard x1")
    screen.process.send_signal(signal.SIGHUP)
    screen.expect("detached").wait(0)
    demand("--detach-keys" in world.stasis("attach", job.name, "--detach-keys", "nonsense", expect=2).err, "no word")
    job.attach().expect("heard x1").type("exit 3\r").wait(3)
    refused = world.stasis("attach", job.name, expect=7)
    demand("it is exited" in refused.err and "stasis logs" in refused.err, f"{refused}")
    job.finish()


def started_without_anybody(world):
    """--tty alone: the terminal exists for later clients."""
    job = Job(world).start("--tty")
    job.await_log("24x80")
    job.attach(size=(33, 44)).expect("ready").expect("window 33x44").type("exit 0\r").wait(0)
    job.finish()


def several_at_once(world):
    job = Job(world)
    first = job.attached(size=(30, 90)).expect("ready")
    watcher = job.attach("--watch", size=(10, 10)).expect("ready")
    second = job.attach(size=(25, 80)).expect("ready")
    first.expect("another terminal has the input")
    first.expect("window 25x80")
    first.type("nobody hears this\r")
    watcher.type("nor this\r")
    second.type("of the second\r")
    for screen in (first, second, watcher):
        screen.expect("heard of the second")
    second.leave()
    first.expect("this terminal has the input again").expect("window 30x90")
    first.type("of the first\r")
    watcher.expect("heard of the first")
    demand("nobody hears" not in watcher.text.replace("\r", ""), "input of a client without the input role arrived")
    watcher.type(b"\x03").expect("detached").wait(0)
    clients = [Client(job.folder, wants_input=False) for _ in range(15)]
    demand(all(client.first[0] == WELCOME for client in clients), "one was refused")
    screen = job.attach().expect("which is the maximum").wait(1)
    for client in clients:
        client.close()
    first.type("exit 0\r").wait(0)
    job.finish()


def slow_client(world):
    """A stopped client blocks nothing, and is told how much it has missed."""
    job = Job(world)
    screen = job.attached().expect("ready")
    fast = Client(job.folder)
    done = world.folder / "poured"
    screen.process.send_signal(signal.SIGSTOP)
    # This test does not read for a while either.
    fast.type(f"pour 60000 {done}\r")
    wait_until(done.exists, PATIENCE_S, "the program is blocked")
    screen.process.send_signal(signal.SIGCONT)
    screen.expect("bytes of output were skipped")
    fast.close()
    # The client that left had the input.
    screen.expect("has the input again").type("after\r").expect("heard after")
    text = (job.folder / "log").read_text()
    demand(all(f"line {i} " in text for i in range(0, 60000, 997)), "the log has not all of it")
    screen.type("exit 0\r").wait(0)
    done.unlink()
    job.finish()


def dumped_attached(world):
    """Restored attached: by name, with its size, on a terminal that is its controlling one."""
    job = Job(world)
    screen = job.attached(size=(35, 77)).expect("ready")
    screen.type("before\r").expect("heard before")
    job.dump()
    screen.expect("was dumped to").wait(75)
    screen = Screen(world, "restore", job.image, "--attach", size=(36, 78))
    screen.expect("heard before").expect("window 36x78")
    screen.type("after\r").expect("heard after")
    screen.type("\x03").expect("interrupted")  # proves that it is its controlling terminal
    job.dump("--leave-running")
    screen.type("more\r").expect("heard more")
    screen.type("exit 5\r").wait(5)
    job.finish()


def dumped_detached(world):
    """A job is dumped and restored twice without a client; the size is kept."""
    job = Job(world)
    job.attached(size=(35, 77)).expect("ready").leave()
    for turn in (1, 2):
        job.dump()
        restored = job.restore()
        demand(f"stasis attach {job.name}" in restored.out, f"the terminal is not mentioned: {restored}")
        client = Client(job.folder)
        demand(client.expect("ready") is not None, "earlier output is not shown")
        client.type("size\r")
        client.expect("size 35x77")
        client.close()
        job.attach(size=(35, 77)).expect("ready").type(f"turn {turn}\r").expect(f"heard turn {turn}").leave()
    # In a new pid namespace too.
    job.dump()
    job.restore("--new-pidns")
    screen = job.attach().expect("heard turn 2").type("\x03").expect("interrupted")
    job.dump("--leave-running")
    screen.type("exit 4\r").wait(4)
    job.finish()


def gpu_program(world):
    """A GPU program on a terminal is dumped and restored like any other."""
    world.stasis("gpu", "ls")  # so that softgpu's broker is not part of the job
    job = Job(world)
    counter = [world.workloads / "counter"]
    screen = Screen(world, "run", "--attach", "--job", job.name, "--", *counter).expect("READY")
    world.stasis("suspend", job.name)
    world.stasis("resume", job.name)
    job.dump()
    screen.expect("was dumped to").wait(75)
    screen = Screen(world, "restore", job.image, "--attach").expect("READY")
    screen.type("\x03").wait(128 + signal.SIGINT)
    job.finish()


def from_a_shell(world):
    """Dumped by pid out of a shell's session: it is restored on its own terminal."""
    master, slave = os.openpty()
    child = subprocess.Popen(["setsid", "-c", "sh", "-c", "python3 -B \"$0\"; exit 7", GUEST[2]], stdin=slave,
                             stdout=slave, stderr=slave)
    world.own(child.pid)
    wait_until(lambda: len(processes.tree(child.pid)) == 2, PATIENCE_S, "no program below the shell")
    pid = processes.tree(child.pid)[1]
    said = b""
    while b"ready" not in said:
        said += os.read(master, 4096)
    job = Job(world)
    job.dump(target=pid)
    child.wait(PATIENCE_S)
    world.disown(child.pid)
    os.close(master)
    os.close(slave)
    job.restore()
    screen = job.attach().type("hello\r").expect("heard hello")
    screen.type("exit 6\r").wait(6)
    job.finish()


def stranger(world):
    """The shim itself rejects other users, whatever the directory's mode."""
    job = Job(world).start("--tty")
    job.await_log("ready")
    for folder in (world.folder, world.state, world.state / "data", world.state / "data" / "jobs", job.folder):
        folder.chmod(0o711)
    (job.folder / "terminal").chmod(0o666)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            code = 0 if Client(job.folder).first[:2] == (REFUSED, 2) else 2
        finally:
            os._exit(code)
    demand(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "another user was admitted")
    demand(Client(job.folder).first[0] == WELCOME, "root is refused")
    job.finish()


def other_versions(world):
    """A client of another version is rejected with the shim's version; a shim of another version is
    reported as such."""
    job = Job(world).start("--tty")
    job.await_log("ready")
    demand(Client(job.folder, version=99).first == (REFUSED, 1, VERSION), "it is not refused")
    for packet in (b"", b"x", b"x" * 20000, b"\0" * 16):
        client = Client(job.folder)
        if packet:
            client.socket.send(packet)
            while (got := client.receive()) is not None:
                demand(got[0] != REFUSED or packet != b"", "refused")
        client.close()
    # Sends before the handshake.
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client.connect(f"{job.folder}/terminal")
    client.send(b"\1\0\0\0\2\0\0\0" + b"\0" * 8 + b"exit 1\r")
    client.settimeout(PATIENCE_S)
    demand(client.recv(100) == b"", "input before a greeting was taken")
    # The shim continues to serve.
    demand(Client(job.folder).first[0] == WELCOME, "the shim does not serve any more")
    (job.folder / "terminal").rename(job.folder / "its own")
    other = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    other.bind(f"{job.folder}/terminal")
    other.listen()
    attach = world.begin("attach", job.name)
    connection = other.accept()[0]
    connection.recv(100)
    connection.send(b"\x63\0\0\0\4\0\0\0\1" + b"\0" * 7)
    attach.wait()
    demand(attach.code == 5 and "uses version 99" in attach.err, f"{attach}")
    connection.close()
    other.close()
    # A shim that no longer exists.
    refused = world.stasis("attach", job.name, expect=1)
    demand("does not answer" in refused.err, f"{refused}")
    (job.folder / "terminal").unlink()
    (job.folder / "its own").rename(job.folder / "terminal")
    job.finish()


def shim_killed(world):
    """The terminal ends with the shim, and the program gets SIGHUP; clients are notified."""
    job = Job(world)
    screen = job.attached().expect("ready")
    os.kill(processes.stat(job.inspect()["pid"])[2], signal.SIGKILL)
    screen.expect("unknown exit code").wait(1)
    world.reap()
    wait_until(lambda: world.reap() or job.inspect()["state"] == "lost", PATIENCE_S, "it is not lost")
    job.finish()


CASES = [(terminal_of_its_own,), (all_of_the_last_output,), (keys_are_signals,), (left_and_come_back,),
         (started_without_anybody,), (several_at_once,), (slow_client,), (dumped_attached,), (dumped_detached,),
         (gpu_program,), (from_a_shell,), (stranger,), (other_versions,), (shim_killed,)]

if __name__ == "__main__":
    sys.exit(cases.main(CASES))
