"""users_test.py --build DIR [--only CASE]: root's daemon works for every user with that user's
rights; a user's own daemon works only for that user."""

import ctypes
import os
import pathlib
import shutil
import sys

from daemon_fixture import DaemonFixture, demand, isolate, main, processes, wait_until

ALICE, BOB = 4001, 4002
PROGRAMS = pathlib.Path(__file__).resolve().parents[1] / "scenario" / "programs"


class User:
    """A user with a separate directory and no entry in /etc/passwd."""

    def __init__(self, fixture, uid):
        self.fixture, self.uid = fixture, uid
        world = fixture.world
        self.home = world.folder / f"home-{uid}"
        self.home.mkdir()
        os.chown(self.home, uid, uid)
        self.env = {"HOME": str(self.home), "TMPDIR": str(self.home), "STASIS_STATE_DIR": str(self.home / "state"),
                    "STASIS_SOCKET": fixture.socket,
                    "LD_LIBRARY_PATH": str(world.build / "lib" / "softgpu")}

    def begin(self, *args, program="bin/stasis", env=None):
        # The build may be in a directory that only root can enter, so it is also mounted elsewhere.
        words = [f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups", "--",
                 self.fixture.build / program, *args]
        return self.fixture.world.begin(*words, program="/usr/bin/setpriv", env={**self.env, **(env or {})})

    def stasis(self, *args, expect=0, **more):
        command = self.fixture.world.last = self.begin(*args, **more).wait()
        self.fixture.world.reap()
        codes = expect if isinstance(expect, tuple) else (expect,)
        demand(command.code in codes, lambda: f"user {self.uid}, expected exit code {expect}:\n{command}")
        return command

    def run(self, name, *options):
        self.stasis("run", "--job", name, *options, "--", self.fixture.build / "workloads" / "counter", "--memory", "8M")
        log = self.home / "state" / "data" / "jobs" / name / "log"
        wait_until(lambda: log.exists() and "READY" in log.read_text(), 60, f"{name} is not ready")

    def jobs(self):
        return {job["id"]: job["state"] for job in self.stasis("ps", "-a", "--json").json()["jobs"]}

    def end(self, name):
        self.stasis("kill", name, "-s", "KILL")
        self.stasis("wait", name, expect=137)
        self.stasis("delete", name)


def for_all(fixture):
    """Makes the build and the socket accessible to all users."""
    world = fixture.world
    os.chmod(world.folder, 0o755)
    # Each user has separate software GPUs.
    del world.env["SOFTGPU_DIR"]
    world.env["STASIS_SOCKET"] = str(world.folder / "stasisd.sock")
    fixture.build = world.folder / "build"
    fixture.build.mkdir()
    isolate.mount(str(world.build), str(fixture.build), flags=isolate.MS_BIND)
    world.bin = fixture.build / "bin"
    return DaemonFixture.start


def leave(fixture):
    world = fixture.world
    world.bin = world.build / "bin"
    world.stasis("arena", "free", expect=None)
    for uid in (0, ALICE, BOB):
        for folder in (f"/dev/shm/stasis-{uid}", f"/tmp/softgpu-{uid}"):
            shutil.rmtree(folder, ignore_errors=True)
    isolate.unmount(str(fixture.build))  # after all of its programs have exited


def separate_jobs(fixture: DaemonFixture):
    for_all(fixture)
    fixture.start()
    alice, bob = User(fixture, ALICE), User(fixture, BOB)
    alice.run("hers")
    bob.run("his")
    fixture.counter("roots")
    demand((alice.jobs(), bob.jobs()) == ({"hers": "running"}, {"his": "running"}), f"{alice.jobs()} {bob.jobs()}")
    # Suspend and resume through the daemon, with each user's own rights.
    for user, name in ((alice, "hers"), (bob, "his")):
        user.stasis("suspend", name)
        demand(user.jobs() == {name: "suspended"}, f"{user.jobs()}")
        owners = {os.stat(path).st_uid for path in (user.home / "state").rglob("*")}
        demand(owners == {user.uid}, f"files of {owners} are in the folder of {user.uid}")
        user.stasis("resume", name)
    # Jobs of other users can be used neither by name nor by pid.
    alice.stasis("suspend", "his", expect=3)
    pid = bob.stasis("inspect", "his", "--json").json()["pid"]
    alice.stasis("suspend", pid, expect=4)
    alice.stasis("daemon", "drain", expect=4)
    demand("only root and the daemon's own user" in fixture.world.last.err, f"{fixture.world.last}")
    # Directories of other users stay inaccessible.
    alice.stasis("ps", expect=4, env={"STASIS_STATE_DIR": str(bob.home / "state")})
    alice.end("hers")
    bob.end("his")
    roots = fixture.world.stasis("ps", "--json").json()["jobs"]
    demand([job["id"] for job in roots] == ["roots"], f"{roots}")
    fixture.world.stasis("kill", "roots", "-s", "KILL")
    fixture.world.stasis("wait", "roots", expect=137)
    fixture.world.stasis("delete", "roots")
    fixture.drain()
    leave(fixture)


def cancelling_operations_of_others(fixture: DaemonFixture):
    """The requesting user and root can see and cancel an operation."""
    import grpc
    for_all(fixture)
    fixture.start_holding("gpu-lock")
    alice = User(fixture, ALICE)
    messages, stubs = fixture.stubs()
    fixture.counter("roots")
    fixture.hold("gpu-lock")
    operation = fixture.world.begin("suspend", "roots")
    fixture.await_phase("gpu-lock")
    found = fixture.operations()
    demand(len(found) == 1 and found[0]["uid"] == 0, f"{found}")
    demand(alice.stasis("daemon", "status", "--json").json()["operations"] == [], "she sees it")
    # Call the service as a program of Alice would.
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setresgid(ALICE, ALICE, ALICE)
        os.setresuid(ALICE, ALICE, ALICE)
        code = 1
        try:
            stubs.StasisStub(fixture.channel()).CancelOperation(
                messages.CancelOperationRequest(operation=found[0]["id"]), timeout=60)
        except grpc.RpcError as error:
            code = 42 if error.code() == grpc.StatusCode.NOT_FOUND else 2
        finally:
            os._exit(code)
    demand(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42, "she may cancel it")
    demand(not fixture.operations()[0]["cancelled"], "it was cancelled")
    fixture.let_go("gpu-lock")
    demand(operation.wait().code == 0, f"{operation}")
    fixture.world.stasis("kill", "roots", "-s", "KILL")
    fixture.world.stasis("wait", "roots", expect=137)
    fixture.world.stasis("delete", "roots")
    fixture.drain()
    leave(fixture)


def log_of_another_user(fixture: DaemonFixture):
    """A log is read with the caller's rights, even after a link has replaced it."""
    import grpc
    for_all(fixture)
    fixture.start()
    alice = User(fixture, ALICE)
    messages, stubs = fixture.stubs()
    log = alice.home / "log"
    alice.stasis("run", "--job", "hers", "--log", log, "--no-agent", "--", "/bin/sh", "-c", "echo hers; sleep 1000")
    wait_until(lambda: log.exists() and log.read_text() == "hers\n", 60, "it writes nothing")
    roots = fixture.world.folder / "roots"
    roots.write_text("nobody may read this\n")
    roots.chmod(0o600)

    def read():
        """Returns the exit code of a child that calls as Alice: 0 if it read Alice's log, 42 if it was refused."""
        child = os.fork()
        if child != 0:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.setgroups([])
        os.setresgid(ALICE, ALICE, ALICE)
        os.setresuid(ALICE, ALICE, ALICE)
        code = 1
        context = messages.CallContext(folders={"run": f"{alice.home}/state/run", "data": f"{alice.home}/state/data"})
        try:
            parts = stubs.StasisStub(fixture.channel()).ReadLog(
                messages.ReadLogRequest(job="hers"), timeout=60,
                metadata=[("stasis-context-bin", context.SerializeToString())])
            code = 0 if b"".join(part.data for part in parts) == b"hers\n" else 3
        except grpc.RpcError as error:
            code = 42 if error.code() in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.PERMISSION_DENIED) else 2
        finally:
            os._exit(code)

    demand(read() == 0, "she cannot read her own")
    log.unlink()
    log.symlink_to(roots)
    demand(read() == 42, "she reads root's")
    alice.end("hers")
    fixture.drain()
    leave(fixture)


def check_by_a_user(fixture: DaemonFixture):
    """`stasis check` reports what an operation of the daemon could do for the caller, who is not root."""
    import grpc
    for_all(fixture)
    fixture.start()
    alice, bob = User(fixture, ALICE), User(fixture, BOB)
    alice.run("hers")
    bob.run("his")
    pid = bob.stasis("inspect", "his", "--json").json()["pid"]
    messages, stubs = fixture.stubs()

    def check(target):
        """Returns the exit code of a child that calls as Alice: 0 if Alice may dump, 42 if the target is refused."""
        child = os.fork()
        if child != 0:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.setgroups([])
        os.setresgid(ALICE, ALICE, ALICE)
        os.setresuid(ALICE, ALICE, ALICE)
        code = 1
        context = messages.CallContext(folders={"run": f"{alice.home}/state/run", "data": f"{alice.home}/state/data"})
        try:
            response = stubs.StasisStub(fixture.channel()).Check(
                messages.CheckRequest(target=target), timeout=120,
                metadata=[("stasis-context-bin", context.SerializeToString())])
            levels = {finding.id: finding.level for finding in response.findings}
            print(levels, flush=True)
            may = levels.get("privileges", "ok") == "ok" and levels.get("program", "ok") == "ok"
            code = 0 if may and levels else 3
        except grpc.RpcError as error:
            code = 42 if error.code() == grpc.StatusCode.PERMISSION_DENIED else 2
        finally:
            os._exit(code)

    for target, wanted in (("", 0), ("hers", 0), (str(pid), 42)):
        found = check(target)
        demand(found == wanted, f"Check of '{target}': {found}, expected {wanted}")
    alice.end("hers")
    bob.end("his")
    fixture.drain()
    leave(fixture)


def log_of_the_daemon(fixture: DaemonFixture):
    """A worker has the caller's user id and some of root's descriptors, which the caller must not
    be able to take."""
    for_all(fixture)
    fixture.start()
    alice = User(fixture, ALICE)
    messages, stubs = fixture.stubs()
    alice.stasis("run", "--job", "hers", "--no-agent", "--", "/bin/sh", "-c", "echo hers; sleep 1000")
    libc = ctypes.CDLL(None, use_errno=True)

    def take():
        """Tries to take descriptors 0 to 3 of the worker that follows Alice's log: 3 if one succeeded, else 0."""
        child = os.fork()
        if child != 0:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.setgroups([])
        os.setresgid(ALICE, ALICE, ALICE)
        os.setresuid(ALICE, ALICE, ALICE)
        code = 1
        context = messages.CallContext(folders={"run": f"{alice.home}/state/run", "data": f"{alice.home}/state/data"})
        try:
            parts = stubs.StasisStub(fixture.channel()).ReadLog(
                messages.ReadLogRequest(job="hers", follow=True), timeout=60,
                metadata=[("stasis-context-bin", context.SerializeToString())])
            next(iter(parts))  # from here on it waits for more
            workers = [p for p in processes.all_pids() if (processes.stat(p) or ("",))[0] == "stasis-worker"]
            taken = [fd for pid in workers for fd in range(4)
                     if libc.syscall(438, os.pidfd_open(pid), fd, 0) >= 0]  # pidfd_getfd
            parts.cancel()
            code = 2 if not workers else 3 if taken else 0
        finally:
            os._exit(code)

    taken = take()
    demand(taken == 0, "she has taken a descriptor of the worker" if taken == 3 else f"it was not tried: {taken}")
    alice.end("hers")
    fixture.drain()
    leave(fixture)


def nccl_beside_another_user(fixture: DaemonFixture):
    """A communicator on the same GPU is seen if the caller may inspect its process: root sees Alice's, but Alice does
    not see root's."""
    for_all(fixture)
    fixture.start()
    alice = User(fixture, ALICE)
    holder = shutil.copy(PROGRAMS / "beside_nccl_socket.py", fixture.world.folder / "holder.py")
    words = ["--", "/usr/bin/python3", holder, fixture.build / "workloads" / "counter", "--memory", "8M"]
    log = fixture.world.folder / "roots.log"
    fixture.world.stasis("run", "--job", "roots", "--log", log, *words)
    wait_until(lambda: log.exists() and "READY" in log.read_text(), 60, "root's is not ready")
    fixture.world.stasis("suspend", "roots")
    fixture.world.stasis("resume", "roots")
    alice.stasis("run", "--job", "hers", *words)
    hers = alice.home / "state" / "data" / "jobs" / "hers" / "log"
    wait_until(lambda: hers.exists() and "READY" in hers.read_text(), 60, "hers is not ready")
    command = fixture.world.stasis("suspend", "roots", expect=7)
    demand("of another job also has an NCCL communicator" in command.err, f"{command}")
    alice.stasis("suspend", "hers")
    alice.stasis("resume", "hers")
    alice.end("hers")
    fixture.world.stasis("suspend", "roots")
    fixture.world.stasis("resume", "roots")
    fixture.world.stasis("kill", "roots", "-s", "KILL")
    fixture.world.stasis("wait", "roots", expect=137)
    fixture.world.stasis("delete", "roots")
    fixture.drain()
    leave(fixture)


def own_daemon(fixture: DaemonFixture):
    """Without root's daemon a user may run one, which serves no other user."""
    for_all(fixture)
    alice, bob = User(fixture, ALICE), User(fixture, BOB)
    fixture.world.env["STASIS_SOCKET"] = alice.env["STASIS_SOCKET"] = str(alice.home / "sock")
    fixture.pid = alice.stasis("daemon", "start", "--json").json()["pid"]
    demand(os.stat(fixture.socket).st_mode & 0o777 == 0o600, "others may connect")
    os.chmod(alice.home, 0o755)
    alice.run("hers")
    demand(alice.jobs() == {"hers": "running"}, f"{alice.jobs()}")
    bob.stasis("ps", expect=4, env={"STASIS_SOCKET": fixture.socket})
    # The same if the socket is opened to all users.
    os.chmod(fixture.socket, 0o666)
    bob.stasis("ps", expect=4, env={"STASIS_SOCKET": fixture.socket})
    demand(f"user {ALICE} is listening" in fixture.world.last.err, f"{fixture.world.last}")
    alice.end("hers")
    alice.stasis("daemon", "drain")
    fixture.await_end()
    leave(fixture)


if __name__ == "__main__":
    sys.exit(main([separate_jobs, cancelling_operations_of_others, log_of_another_user, check_by_a_user,
                   log_of_the_daemon, nccl_beside_another_user, own_daemon]))
