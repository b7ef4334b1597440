"""users_test.py --build DIR [--only CASE]: root's daemon works for every user with that user's
rights; a user's own daemon works only for that user."""

import ctypes
import os
import pathlib
import shutil
import sys

from house import House, demand, isolate, main, processes, wait_until

ALICE, BOB = 4001, 4002
PROGRAMS = pathlib.Path(__file__).resolve().parents[1] / "scenario" / "programs"


class User:
    """A user with a separate directory and no entry in /etc/passwd."""

    def __init__(self, house, uid):
        self.house, self.uid = house, uid
        world = house.world
        self.home = world.folder / f"home-{uid}"
        self.home.mkdir()
        os.chown(self.home, uid, uid)
        self.env = {"HOME": str(self.home), "TMPDIR": str(self.home), "STASIS_STATE_DIR": str(self.home / "state"),
                    "STASIS_SOCKET": house.socket,
                    "LD_LIBRARY_PATH": str(world.build / "lib" / "softgpu")}

    def begin(self, *args, program="bin/stasis", env=None):
        # The build may be in a directory that only root can enter, so it is also mounted elsewhere.
        words = [f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups", "--",
                 self.house.build / program, *args]
        return self.house.world.begin(*words, program="/usr/bin/setpriv", env={**self.env, **(env or {})})

    def stasis(self, *args, expect=0, **more):
        command = self.house.world.last = self.begin(*args, **more).wait()
        self.house.world.reap()
        codes = expect if isinstance(expect, tuple) else (expect,)
        demand(command.code in codes, lambda: f"user {self.uid}, expected exit code {expect}:\n{command}")
        return command

    def run(self, name, *options):
        self.stasis("run", "--job", name, *options, "--", self.house.build / "workloads" / "counter", "--memory", "8M")
        log = self.home / "state" / "data" / "jobs" / name / "log"
        wait_until(lambda: log.exists() and "READY" in log.read_text(), 60, f"{name} is not ready")

    def jobs(self):
        return {job["id"]: job["state"] for job in self.stasis("ps", "-a", "--json").json()["jobs"]}

    def end(self, name):
        self.stasis("kill", name, "-s", "KILL")
        self.stasis("wait", name, expect=137)
        self.stasis("delete", name)


def for_all(house):
    """Makes the build and the socket accessible to all users."""
    world = house.world
    os.chmod(world.folder, 0o755)
    # Each user has separate software GPUs.
    del world.env["SOFTGPU_DIR"]
    world.env["STASIS_SOCKET"] = str(world.folder / "stasisd.sock")
    house.build = world.folder / "build"
    house.build.mkdir()
    isolate.mount(str(world.build), str(house.build), flags=isolate.MS_BIND)
    world.bin = house.build / "bin"
    return House.start


def leave(house):
    world = house.world
    world.bin = world.build / "bin"
    world.stasis("arena", "free", expect=None)
    for uid in (0, ALICE, BOB):
        for folder in (f"/dev/shm/stasis-{uid}", f"/tmp/softgpu-{uid}"):
            shutil.rmtree(folder, ignore_errors=True)
    isolate.unmount(str(house.build))  # after all of its programs have exited


def separate_jobs(house: House):
    for_all(house)
    house.start()
    alice, bob = User(house, ALICE), User(house, BOB)
    alice.run("hers")
    bob.run("his")
    house.counter("roots")
    demand((alice.jobs(), bob.jobs()) == ({"hers": "running"}, {"his": "running"}), f"{alice.jobs()} {bob.jobs()}")
    # Through the daemon, with their own rights.
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
    demand("only root and the daemon's own user" in house.world.last.err, f"{house.world.last}")
    # Directories of other users stay inaccessible.
    alice.stasis("ps", expect=4, env={"STASIS_STATE_DIR": str(bob.home / "state")})
    alice.end("hers")
    bob.end("his")
    roots = house.world.stasis("ps", "--json").json()["jobs"]
    demand([job["id"] for job in roots] == ["roots"], f"{roots}")
    house.world.stasis("kill", "roots", "-s", "KILL")
    house.world.stasis("wait", "roots", expect=137)
    house.world.stasis("delete", "roots")
    house.drain()
    leave(house)


def cancelling_operations_of_others(house: House):
    """The requesting user and root can see and cancel an operation."""
    import grpc
    for_all(house)
    house.start_holding("gpu-lock")
    alice = User(house, ALICE)
    messages, stubs = house.stubs()
    house.counter("roots")
    house.hold("gpu-lock")
    operation = house.world.begin("suspend", "roots")
    house.await_phase("gpu-lock")
    found = house.operations()
    demand(len(found) == 1 and found[0]["uid"] == 0, f"{found}")
    demand(alice.stasis("daemon", "status", "--json").json()["operations"] == [], "she sees it")
    # As her program would call it.
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setresgid(ALICE, ALICE, ALICE)
        os.setresuid(ALICE, ALICE, ALICE)
        code = 1
        try:
            stubs.StasisStub(house.channel()).CancelOperation(
                messages.CancelOperationRequest(operation=found[0]["id"]), timeout=60)
        except grpc.RpcError as error:
            code = 42 if error.code() == grpc.StatusCode.NOT_FOUND else 2
        finally:
            os._exit(code)
    demand(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42, "she may cancel it")
    demand(not house.operations()[0]["cancelled"], "it was cancelled")
    house.let_go("gpu-lock")
    demand(operation.wait().code == 0, f"{operation}")
    house.world.stasis("kill", "roots", "-s", "KILL")
    house.world.stasis("wait", "roots", expect=137)
    house.world.stasis("delete", "roots")
    house.drain()
    leave(house)


def log_of_another_user(house: House):
    """A log is read with the caller's rights, whatever file is there by then."""
    import grpc
    for_all(house)
    house.start()
    alice = User(house, ALICE)
    messages, stubs = house.stubs()
    log = alice.home / "log"
    alice.stasis("run", "--job", "hers", "--log", log, "--no-agent", "--", "/bin/sh", "-c", "echo hers; sleep 1000")
    wait_until(lambda: log.exists() and log.read_text() == "hers\n", 60, "it writes nothing")
    roots = house.world.folder / "roots"
    roots.write_text("nobody may read this\n")
    roots.chmod(0o600)

    def read():
        """Returns the exit code of a child that calls as she would: 0 if it read her own data, 42
        for other data."""
        child = os.fork()
        if child != 0:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.setgroups([])
        os.setresgid(ALICE, ALICE, ALICE)
        os.setresuid(ALICE, ALICE, ALICE)
        code = 1
        context = messages.CallContext(folders={"run": f"{alice.home}/state/run", "data": f"{alice.home}/state/data"})
        try:
            parts = stubs.StasisStub(house.channel()).ReadLog(
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
    house.drain()
    leave(house)


def check_by_a_user(house: House):
    """Check finds what an operation of the daemon could do for the caller, who is not root."""
    import grpc
    for_all(house)
    house.start()
    alice, bob = User(house, ALICE), User(house, BOB)
    alice.run("hers")
    bob.run("his")
    pid = bob.stasis("inspect", "his", "--json").json()["pid"]
    messages, stubs = house.stubs()

    def check(target):
        """Returns the exit code of a child that calls as she would: 0 if she may dump, 42 if the
        target is refused."""
        child = os.fork()
        if child != 0:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.setgroups([])
        os.setresgid(ALICE, ALICE, ALICE)
        os.setresuid(ALICE, ALICE, ALICE)
        code = 1
        context = messages.CallContext(folders={"run": f"{alice.home}/state/run", "data": f"{alice.home}/state/data"})
        try:
            response = stubs.StasisStub(house.channel()).Check(
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
    house.drain()
    leave(house)


def log_of_the_daemon(house: House):
    """A worker has the caller's user id and some of root's descriptors, which the caller must not
    be able to take."""
    for_all(house)
    house.start()
    alice = User(house, ALICE)
    messages, stubs = house.stubs()
    alice.stasis("run", "--job", "hers", "--no-agent", "--", "/bin/sh", "-c", "echo hers; sleep 1000")
    libc = ctypes.CDLL(None, use_errno=True)

    def take():
        """Tries to take descriptors 0 to 3 of the worker that follows her log: 3 if one succeeded,
        else 0."""
        child = os.fork()
        if child != 0:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.setgroups([])
        os.setresgid(ALICE, ALICE, ALICE)
        os.setresuid(ALICE, ALICE, ALICE)
        code = 1
        context = messages.CallContext(folders={"run": f"{alice.home}/state/run", "data": f"{alice.home}/state/data"})
        try:
            parts = stubs.StasisStub(house.channel()).ReadLog(
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
    house.drain()
    leave(house)


def nccl_beside_another_user(house: House):
    """A communicator on the same GPU is seen if the caller may inspect its process: root sees hers,
    but not vice versa."""
    for_all(house)
    house.start()
    alice = User(house, ALICE)
    holder = shutil.copy(PROGRAMS / "beside_nccl_socket.py", house.world.folder / "holder.py")
    words = ["--", "/usr/bin/python3", holder, house.build / "workloads" / "counter", "--memory", "8M"]
    log = house.world.folder / "roots.log"
    house.world.stasis("run", "--job", "roots", "--log", log, *words)
    wait_until(lambda: log.exists() and "READY" in log.read_text(), 60, "root's is not ready")
    house.world.stasis("suspend", "roots")
    house.world.stasis("resume", "roots")
    alice.stasis("run", "--job", "hers", *words)
    hers = alice.home / "state" / "data" / "jobs" / "hers" / "log"
    wait_until(lambda: hers.exists() and "READY" in hers.read_text(), 60, "hers is not ready")
    command = house.world.stasis("suspend", "roots", expect=7)
    demand("another job uses with NCCL too" in command.err, f"{command}")
    alice.stasis("suspend", "hers")
    alice.stasis("resume", "hers")
    alice.end("hers")
    house.world.stasis("suspend", "roots")
    house.world.stasis("resume", "roots")
    house.world.stasis("kill", "roots", "-s", "KILL")
    house.world.stasis("wait", "roots", expect=137)
    house.world.stasis("delete", "roots")
    house.drain()
    leave(house)


def own_daemon(house: House):
    """Without root's daemon a user may run one, which serves no other user."""
    for_all(house)
    alice, bob = User(house, ALICE), User(house, BOB)
    house.world.env["STASIS_SOCKET"] = alice.env["STASIS_SOCKET"] = str(alice.home / "sock")
    house.pid = alice.stasis("daemon", "start", "--json").json()["pid"]
    demand(os.stat(house.socket).st_mode & 0o777 == 0o600, "others may connect")
    os.chmod(alice.home, 0o755)
    alice.run("hers")
    demand(alice.jobs() == {"hers": "running"}, f"{alice.jobs()}")
    bob.stasis("ps", expect=4, env={"STASIS_SOCKET": house.socket})
    # Nor if its socket is opened to them.
    os.chmod(house.socket, 0o666)
    bob.stasis("ps", expect=4, env={"STASIS_SOCKET": house.socket})
    demand(f"user {ALICE} listens" in house.world.last.err, f"{house.world.last}")
    alice.end("hers")
    alice.stasis("daemon", "drain")
    house.await_end()
    leave(house)


if __name__ == "__main__":
    sys.exit(main([separate_jobs, cancelling_operations_of_others, log_of_another_user, check_by_a_user,
                   log_of_the_daemon, nccl_beside_another_user, own_daemon]))
