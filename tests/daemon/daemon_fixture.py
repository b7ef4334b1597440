"""Shared code of the daemon's tests: a test environment whose commands use a daemon, and a client
of the service."""

import argparse
import json
import os
import pathlib
import shutil
import signal
import sys
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))
# Child processes must not use this process's connections.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

import isolate  # noqa: E402
import processes  # noqa: E402
from processes import wait_until  # noqa: E402
from programs import Program  # noqa: E402
from world import Failed, World, demand, isolate_keep  # noqa: E402

__all__ = ["Failed", "DaemonFixture", "Program", "World", "demand", "isolate", "main", "processes", "wait_until"]

WORKER = "stasis-worker"

# Not a shell script, which would change the process name and the signal handling.
WAITING_WORKER = """#!/usr/bin/python3 -IS
import ctypes, os, signal, time
ctypes.CDLL(None).prctl(15, b"stasis-worker")
while os.path.exists("{held}"):
    time.sleep(0.01)
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
os.execv("{worker}", ["{worker}"])
"""


class DaemonFixture:
    """A test environment with one daemon, at the socket where its commands look for one. `env` is the daemon's
    environment."""

    def __init__(self, world):
        self.world = world
        self.pid = 0
        self._holding = None

    @property
    def socket(self):
        return self.world.env.get("STASIS_SOCKET", str(self.world.state / "run" / "stasisd.sock"))

    def start(self, env=None):
        self.pid = self.world.stasis("daemon", "start", "--json", env=env).json()["pid"]
        return self

    def kill(self, number=signal.SIGKILL):
        os.kill(self.pid, number)
        self.await_end()

    def await_end(self):
        def gone():
            for command in self.world.log:
                command.process.poll()
            self.world.reap()
            # Wait until the daemon is reaped, because threads of a zombie may still hold its sockets and mounts.
            return processes.stat(self.pid) is None
        wait_until(gone, 60, lambda: f"the daemon does not end: {processes.describe(self.pid)}")

    def drain(self):
        self.world.stasis("daemon", "drain")
        self.await_end()

    def status(self):
        return self.world.stasis("daemon", "status", "--json").json()

    def operations(self):
        return self.status()["operations"]

    def workers(self):
        return [pid for pid in processes.called(WORKER) if processes.is_alive(pid)]

    def await_workers_end(self):
        wait_until(lambda: self.world.reap() or not self.workers(), 60, lambda: f"workers stay: {self.workers()}")

    def await_operation(self):
        """Returns the operation in progress, as the daemon lists it. Its worker runs or is about to
        start."""
        return wait_until(self.operations, 60, "no operation is under way")[0]

    def await_no_operation(self):
        wait_until(lambda: not self.operations(), 60, lambda: f"still under way: {self.operations()}")

    def begin_waiting(self, *words, begin=None):
        """Starts a command and returns when it has the only worker."""
        self.await_workers_end()
        command = (begin or self.world.begin)(*words)
        wait_until(lambda: self.workers() or command.process.poll() is not None, 60, "no worker is started")
        demand(command.process.poll() is None, lambda: f"it has ended: {command}")
        return command

    def await_phase(self, phase):
        self.world.await_phase(phase)

    @staticmethod
    def log_lines(log):
        """Returns the lines of the daemon's log; ignores an incomplete last line."""
        return [json.loads(line) for line in log.read_text().split("\n")[:-1]]

    def await_nobody(self):
        """Checks that there is no worker and no connection any more."""
        self.await_workers_end()
        wait_until(lambda: self.connected() == 0, 60, lambda: f"{self.connected()} are connected")

    def connected(self):
        """Counts the connections to the daemon's socket, without the listening socket."""
        lines = pathlib.Path("/proc/net/unix").read_text().splitlines()
        return sum(line.endswith(f" {self.socket}") for line in lines) - 1

    # Holding operations in a phase.

    def start_holding(self, *phases, env=None):
        """Starts a daemon whose operations can be held at these phases."""
        holds = ",".join(f"{phase}:before:hold={self._held(phase)}" for phase in phases)
        self._holding = {**(env or {}), "STASIS_FAULT": holds}
        return self.start(self._holding)

    def start_again(self):
        return self.start(self._holding)

    def _held(self, phase):
        return self.world.folder / f"hold-{phase}"

    def hold(self, phase):
        self._held(phase).touch()

    def let_go(self, phase):
        self._held(phase).unlink()

    def hold_workers(self, env=None):
        """Starts a daemon whose workers neither start nor handle input while `worker` is held."""
        world = self.world
        tree = world.folder / "held"
        tree.mkdir()
        isolate.mount(str(world.build), str(tree), flags=isolate.MS_BIND)
        waits = world.folder / WORKER
        waits.write_text(WAITING_WORKER.format(worker=world.build / "libexec" / WORKER, held=self._held("worker")))
        waits.chmod(0o755)
        isolate.mount(str(waits), str(tree / "libexec" / WORKER), flags=isolate.MS_BIND)
        ours, world.bin = world.bin, tree / "bin"
        self.start(env)
        world.bin = ours

    def leave_workers(self):
        """After hold_workers: stops the daemon if it still runs."""
        if processes.is_alive(self.pid):
            self.drain()
        tree = self.world.folder / "held"
        isolate.unmount(str(tree / "libexec" / WORKER))
        isolate.unmount(str(tree))

    # Programs.

    def counter(self, name="job", *options):
        return Program(self.world, name, "counter", ["--memory", "8M"]).run(*options)

    def end(self, job):
        """Ends the program, which verifies its data, and deletes its job."""
        job.expect_running()
        job.finish()
        self.world.stasis("delete", job.name)

    # The service.

    def channel(self, apart=False):
        """All channels of a process share one connection, except one with `apart`."""
        import grpc
        return grpc.insecure_channel(f"unix:{self.socket}", [("grpc.use_local_subchannel_pool", int(apart))])

    def stubs(self):
        """Returns the generated modules: messages and stubs."""
        sys.path.insert(0, str(self.world.build / "python"))
        from stasis.v1 import stasis_pb2, stasis_pb2_grpc
        return stasis_pb2, stasis_pb2_grpc


def main(cases):
    """Runs all functions in `cases`, or the one named by --only, each in its own process and test
    environment. Returns the exit code. A case gets a DaemonFixture without a daemon."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--only")
    parser.add_argument("--all", action="store_true", help="long lists of cases completely, as in the nightly run")
    options = parser.parse_args()
    isolate.enter(isolate_keep(options.build))
    failed = []
    for case in cases:
        name = case.__name__
        if options.only not in (None, name):
            continue
        began = os.times().elapsed
        world = World(options.build)
        world.every = options.all
        fixture = DaemonFixture(world)
        try:
            case(fixture)
            if fixture.pid and processes.is_alive(fixture.pid):
                fixture.drain()
            world.expect_clean()
            world.close()
            verdict = "ok"
        except Exception as error:  # noqa: BLE001 - the other cases are run all the same
            verdict = "FAILED"
            failed.append(name)
            known = isinstance(error, (Failed, processes.Late))
            print(f"{name}: {error if known else traceback.format_exc()}\nThe last commands:\n{world.transcript()}")
            log = world.state / "run" / "stasisd.log"
            if log.exists():
                print(f"The daemon's log:\n{log.read_text()[-2000:]}")
            for pid in processes.all_pids():
                if pid != os.getpid():
                    processes.end(pid)
            world.reap_all()
            # Never delete through a mount.
            if not any(path.startswith(f"{world.folder}/") for path in isolate.mounts()):
                shutil.rmtree(world.folder, ignore_errors=True)
        print(f"{os.times().elapsed - began:6.2f} s  {verdict:6}  {name}", flush=True)
    return 1 if failed else 0
