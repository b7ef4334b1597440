"""life_test.py --build DIR [--only CASE]: a daemon is started, queried, stopped, killed, and
replaced."""

import os
import signal
import socket
import sys
import threading

from daemon_fixture import DaemonFixture, demand, main, processes, wait_until

NO_USER = 12345  # a user without any rights


def said(fixture, *words):
    for word in words:
        demand(word in fixture.world.last.err, f"the message lacks '{word}':\n{fixture.world.last}")


def start_status_drain(fixture: DaemonFixture):
    world = fixture.world
    world.stasis("daemon", "status", expect=3)
    said(fixture, "no daemon is running", "`stasis daemon start`")
    fixture.start()
    again = world.stasis("daemon", "start", "--json").json()
    demand(again == {"pid": fixture.pid, "socket": fixture.socket, "started": False}, f"{again}")
    # A second daemon with the same socket is rejected.
    second = world.begin(program="stasisd").wait()
    demand(second.code == 7 and "a daemon is already running" in second.err, f"{second}")
    status = fixture.status()
    demand((status["pid"], status["uid"], status["draining"], status["operations"]) == (fixture.pid, 0, False, []),
           f"{status}")
    # Commands use this daemon, and all users may connect to it.
    world.stasis("ps")
    demand(os.stat(fixture.socket).st_mode & 0o777 == 0o666, "not all users may connect to root's")
    fixture.drain()
    demand(not os.path.exists(fixture.socket), "the socket stays")
    world.stasis("daemon", "status", expect=3)
    world.stasis("ps")


def killed(fixture: DaemonFixture):
    world = fixture.world
    fixture.start().kill()
    for words in (["ps"], ["suspend", "nobody"], ["recover"], ["daemon", "status"], ["daemon", "drain"]):
        world.stasis(*words, expect=1)
        said(fixture, f"the daemon's socket {fixture.socket} does not answer", "Connection refused", "`stasis daemon start`",
             "--no-daemon")
    world.stasis("--no-daemon", "ps")
    first = fixture.pid
    fixture.start()
    demand(fixture.pid != first and world.stasis("ps"), "no new daemon")


def ended_by_signal(fixture: DaemonFixture):
    fixture.start().kill(signal.SIGTERM)
    demand(not os.path.exists(fixture.socket), "the socket stays")
    fixture.world.stasis("ps")


def hangs(fixture: DaemonFixture):
    """A command waits for a stopped daemon for a limited time, and does not fall back to working without it."""
    fixture.start()
    os.kill(fixture.pid, signal.SIGSTOP)
    fixture.world.stasis("ps", expect=1)
    said(fixture, "does not answer", "--no-daemon")
    os.kill(fixture.pid, signal.SIGCONT)
    fixture.world.stasis("ps")


def other_users(fixture: DaemonFixture):
    """Users other than root and the daemon's own get no answer."""
    world = fixture.world
    world.env["STASIS_SOCKET"] = str(world.folder / "theirs")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        server = socket.socket(socket.AF_UNIX)
        server.bind(fixture.socket)
        os.chmod(fixture.socket, 0o666)
        # The kernel reports the credentials that the server has at listen().
        os.setresuid(NO_USER, NO_USER, NO_USER)
        server.listen()
        os.write(write, b"x")
        peer, _ = server.accept()
        os.write(write, peer.recv(100) or b"nothing")
        os._exit(0)
    os.close(write)
    world.own(child)
    os.read(read, 1)
    world.stasis("ps", expect=4)
    said(fixture, f"a process of user {NO_USER} is listening on the daemon's socket")
    demand(os.read(read, 100) == b"nothing", "something was sent to it")
    os.waitpid(child, 0)


def drained(fixture: DaemonFixture):
    """No operation is started, and those in progress finish first."""
    world = fixture.world
    fixture.start_holding("gpu-lock")
    job = fixture.counter()
    fixture.hold("gpu-lock")
    operation = world.begin("suspend", "job")
    fixture.await_phase("gpu-lock")
    demand([o["target"] for o in fixture.operations()] == ["job"], "the operation is not listed")
    world.stasis("daemon", "drain", "--timeout", "0.05", expect=1)
    said(fixture, "operations still in progress: 1")
    drain = world.begin("daemon", "drain")
    wait_until(lambda: fixture.status()["draining"], 60, "it does not drain")
    for words in (["resume", "job"], ["recover"]):
        world.stasis(*words, expect=1)
        said(fixture, "is being drained", "--no-daemon")
    world.stasis("ps")
    # Steps of the driver that only read are answered.
    messages, stubs = fixture.stubs()
    step = messages.GpuStepRequest(target=str(world.stasis("inspect", "job", "--json").json()["pid"]), step="state")
    answer = stubs.StasisStub(fixture.channel(apart=True)).GpuStep(step, timeout=60)
    demand(answer.state == "running", f"{answer}")
    demand(drain.process.poll() is None, "it was drained too early")
    fixture.let_go("gpu-lock")
    demand(operation.wait().code == 0, f"{operation}")
    demand(drain.wait().code == 0, f"{drain}")
    fixture.await_end()
    world.stasis("resume", "job")
    fixture.end(job)


def notifies(fixture: DaemonFixture):
    """The service manager is notified when the daemon accepts calls and when it stops."""
    path = str(fixture.world.folder / "notify")
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(path)
    manager.settimeout(60)
    fixture.start({"NOTIFY_SOCKET": path})
    demand(manager.recv(100) == b"READY=1\nSTATUS=ready\n", "the service manager is not told that it is ready")
    fixture.drain()
    demand(manager.recv(100) == b"STOPPING=1\n", "the service manager is not told that it stops")


def fill(path):
    """Sends to a datagram socket until its buffer is full."""
    try:
        while True:
            # The buffer of a single sender could be full first.
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto(b"x", path)
    except BlockingIOError:
        pass


def drain_awaits_the_end(fixture: DaemonFixture):
    """`drain && start`, as in an upgrade: a drained daemon has released the socket. The daemon stops late, because its
    service manager does not read for a while."""
    world = fixture.world
    path = str(world.folder / "notify")
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(path)
    late = {"NOTIFY_SOCKET": path}

    def listen(until):
        manager.settimeout(60)
        while manager.recv(100) != until:
            pass

    fixture.start(late)
    listen(b"READY=1\nSTATUS=ready\n")
    fill(path)
    listener = threading.Timer(1, listen, [b"STOPPING=1\n"])
    listener.start()
    # A new daemon needs the lock, and the old one releases it last.
    both = world.shell(f"stasis daemon drain >&2 && flock -n {fixture.socket}.lock true && stasis daemon start --json",
                       env=late)
    listener.join()
    demand(both.err == "drained: the daemon has stopped, jobs continue\n", f"{both}")
    started = both.json()
    demand(started["started"] and started["pid"] != fixture.pid, f"{both}")

    # A daemon that does not stop is named.
    fixture.pid = started["pid"]
    listen(b"READY=1\nSTATUS=ready\n")
    fill(path)
    world.stasis("daemon", "drain", expect=1)
    said(fixture, f"the daemon is drained, but its process {fixture.pid} has not exited in 10 s", f"`kill -9 {fixture.pid}`")
    listen(b"STOPPING=1\n")
    fixture.await_end()


def no_descriptors(fixture: DaemonFixture):
    """A client that opens connections endlessly neither stops the daemon nor keeps a processor
    busy."""
    world = fixture.world
    fixture.start()
    fds = os.listdir(f"/proc/{fixture.pid}/fd")
    world.shell(f"prlimit --pid {fixture.pid} --nofile={len(fds) + 20}:")
    peers = []
    for _ in range(60):
        peer = socket.socket(socket.AF_UNIX)
        peer.connect(fixture.socket)
        peers.append(peer)
    log = world.state / "run" / "stasisd.log"
    wait_until(lambda: "cannot accept" in log.read_text(), 60, "it takes all of them")
    seen = log.read_text().count("cannot accept")
    world.stasis("--no-daemon", "gpu", "ls")  # takes a moment
    demand(log.read_text().count("cannot accept") < seen + 20, "it retries without a pause")
    for peer in peers:
        peer.close()
    world.shell(f"prlimit --pid {fixture.pid} --nofile=1024:")
    world.stasis("ps")
    demand(processes.is_alive(fixture.pid), "it has ended")


if __name__ == "__main__":
    sys.exit(main([start_status_drain, killed, ended_by_signal, hangs, other_users, drained, notifies,
                   drain_awaits_the_end, no_descriptors]))
