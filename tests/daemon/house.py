"""What the daemon's tests share: a world whose commands go to a daemon, and the service as programs call it."""

import argparse
import json
import os
import pathlib
import shutil
import signal
import sys
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))
# Nothing that we start has to do with our connections.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

import isolate  # noqa: E402
import processes  # noqa: E402
from processes import wait_until  # noqa: E402
from programs import Program  # noqa: E402
from world import Failed, World, demand, isolate_keep  # noqa: E402

__all__ = ["Failed", "House", "Program", "World", "demand", "isolate", "main", "processes", "wait_until"]

WORKER = "stasis-worker"

# Under its name, and with its signals as they are (a shell would not leave them so).
WAITING_WORKER = """#!/usr/bin/python3 -IS
import ctypes, os, signal, time
ctypes.CDLL(None).prctl(15, b"stasis-worker")
while os.path.exists("{held}"):
    time.sleep(0.01)
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
os.execv("{worker}", ["{worker}"])
"""


class House:
    """A world with one daemon at the place where its commands look for one. `env` is the daemon's own."""

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
            # Reaped: of one that is only a zombie threads may still hold its sockets and mounts.
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
        """The one that is under way, as the daemon lists it: its worker has been started, or is about to be."""
        return wait_until(self.operations, 60, "no operation is under way")[0]

    def await_no_operation(self):
        wait_until(lambda: not self.operations(), 60, lambda: f"still under way: {self.operations()}")

    def begin_waiting(self, *words, begin=None):
        """A command for which a worker works, once there is that worker, and no other."""
        self.await_workers_end()
        command = (begin or self.world.begin)(*words)
        wait_until(lambda: self.workers() or command.process.poll() is not None, 60, "no worker is started")
        demand(command.process.poll() is None, lambda: f"it has ended: {command}")
        return command

    def await_phase(self, phase):
        self.world.await_phase(phase)

    @staticmethod
    def log_lines(log):
        """Of the daemon's log; one that has no end yet is being written."""
        return [json.loads(line) for line in log.read_text().split("\n")[:-1]]

    def await_nobody(self):
        """Nobody works for anybody, and whoever was connected is not any more."""
        self.await_workers_end()
        wait_until(lambda: self.connected() == 0, 60, lambda: f"{self.connected()} are connected")

    def connected(self):
        """How many connections to the daemon's socket there are; it listens there itself."""
        lines = pathlib.Path("/proc/net/unix").read_text().splitlines()
        return sum(line.endswith(f" {self.socket}") for line in lines) - 1

    # Operations that wait in a phase until we let them go on.

    def start_holding(self, *phases, env=None):
        """With a daemon whose operations can be held at these phases."""
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
        """With a daemon whose workers do not begin, and hear nothing, while `worker` is held."""
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
        """After hold_workers: ends the daemon where it still runs."""
        if processes.is_alive(self.pid):
            self.drain()
        tree = self.world.folder / "held"
        isolate.unmount(str(tree / "libexec" / WORKER))
        isolate.unmount(str(tree))

    # A program.

    def counter(self, name="job", *options):
        return Program(self.world, name, "counter", ["--memory", "8M"]).run(*options)

    def end(self, job):
        """It is right to the end, and is forgotten."""
        job.expect_running()
        job.finish()
        self.world.stasis("delete", job.name)

    # The service, as programs call it.

    def channel(self, apart=False):
        """All channels of a process share one connection, but for one that is `apart`."""
        import grpc
        return grpc.insecure_channel(f"unix:{self.socket}", [("grpc.use_local_subchannel_pool", int(apart))])

    def stubs(self):
        """The modules that were generated of the service: messages, and stubs."""
        sys.path.insert(0, str(self.world.build / "python"))
        from stasis.v1 import stasis_pb2, stasis_pb2_grpc
        return stasis_pb2, stasis_pb2_grpc


def main(cases):
    """Runs all functions in `cases`, or the one that --only names, each in a world of its own process: its exit
    code. A case takes a House without a daemon."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--only")
    options = parser.parse_args()
    isolate.enter(isolate_keep(options.build))
    failed = []
    for case in cases:
        name = case.__name__
        if options.only not in (None, name):
            continue
        began = os.times().elapsed
        world = World(options.build)
        house = House(world)
        try:
            case(house)
            if house.pid and processes.is_alive(house.pid):
                house.drain()
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
            # Never through what is mounted there.
            if not any(path.startswith(f"{world.folder}/") for path in isolate.mounts()):
                shutil.rmtree(world.folder, ignore_errors=True)
        print(f"{os.times().elapsed - began:6.2f} s  {verdict:6}  {name}", flush=True)
    return 1 if failed else 0
