#!/usr/bin/env python3
"""Running programs become jobs that share GPUs (`manage --share`): one under the agent does, one without is refused."""
import os
import pathlib
import signal
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "stage"), str(HERE.parent / "daemon")]
from alone_test import GPU_MEMORY, REST_S, go_on_sharing  # noqa: E402
from daemon_fixture import DaemonFixture  # noqa: E402
import one_world  # noqa: E402
from share_test import Job, await_shares  # noqa: E402
from world import demand  # noqa: E402


class Managed(Job):
    """A program that was not started by Stasis."""

    def __init__(self, world, name, env):
        self.world, self.name = world, name
        self.log = world.folder / f"{name}.log"
        with open(self.log, "wb") as log:
            self.program = subprocess.Popen(
                [sys.executable, str(HERE / "sharer.py"), "--seed", "7", "--mib", "64", "--rest", REST_S],
                env={**world.env, **env}, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        world.own(self.program.pid)

    def end(self):
        os.kill(self.program.pid, signal.SIGKILL)
        self.program.wait()
        self.world.disown(self.program.pid)


def run(world):
    world.set_gpu(1, GPU_MEMORY)
    world.env["STASIS_HELPER_IDLE_S"] = "5"
    bare = Managed(world, "bare", {})
    bare.await_ready()
    world.stasis("manage", str(bare.program.pid), "--job", "bare", "--share", expect=3)
    demand("sharing GPUs needs the daemon" in world.last.err, lambda: f"{world.last}")
    daemon = DaemonFixture(world).start()
    world.stasis("manage", str(bare.program.pid), "--job", "bare", "--share", expect=5)
    demand("agent" in world.last.err, lambda: f"the refusal does not name the agent: {world.last}")
    bare.end()

    managed = Managed(world, "managed", {"LD_PRELOAD": str(world.build / "lib" / "libstasis-agent.so")})
    managed.await_ready()
    world.stasis("manage", str(managed.program.pid), "--job", "managed", "--share")
    await_shares(world, lambda all_shares: "managed" in all_shares, "the managed program does not share")
    other = Job(world, "other", "--mib", "64", "--rest", REST_S)
    other.await_ready()
    go_on_sharing(world, managed, other)
    other.end()
    managed.await_rounds(2)
    managed.end()
    daemon.drain()
    # The daemon may have ended before it has freed the data of a program that was killed while it was away.
    world.stasis("recover")


if __name__ == "__main__":
    sys.exit(one_world.main(run))
