#!/usr/bin/env python3
"""Programs that do not fit on the GPUs together share them on demand: six programs on a GPU for two, an allocation that
needs room, programs over two GPUs, and a daemon that is killed all the while."""
import os
import pathlib
import re
import signal
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "stage"), str(HERE.parent / "daemon")]
from daemon_fixture import DaemonFixture  # noqa: E402
import one_world  # noqa: E402
from processes import wait_until  # noqa: E402
from world import demand  # noqa: E402

# Room for two programs of 96 MiB, their contexts, another context and a mover.
GPU_MEMORY = "272M"
# A turn lasts ten times as long as a swap, which takes seconds on a busy machine.
PATIENCE_S = 180


class Job:
    def __init__(self, world, name, *options, share="--share", env=None):
        self.world, self.name = world, name
        self.log = pathlib.Path(world.stasis(
            "run", "--json", share, "--job", name, "--", sys.executable, str(HERE / "sharer.py"),
            "--seed", str(len(name) * 100 + ord(name[-1])), *options, env=env).json()["log"])

    def text(self):
        return self.log.read_text()

    def rounds(self):
        found = re.findall(r"^round (\d+) ", self.text(), re.M)
        return int(found[-1]) if found else 0

    def failures(self):
        return self.text().count("out of memory")

    def await_ready(self):
        wait_until(lambda: "READY" in self.text(), PATIENCE_S, lambda: f"{self.name} is not ready: {self.about()}")

    def await_rounds(self, more):
        goal = self.rounds() + more
        wait_until(lambda: self.rounds() >= goal, PATIENCE_S, lambda: f"{self.name} does not go on: {self.about()}")

    def check(self):
        demand("WRONG" not in self.text() and self.shown()["state"] != "exited", lambda: self.about())

    def shown(self):
        return self.world.stasis("inspect", self.name, "--json").json()

    def about(self):
        shares = self.world.stasis("share", expect=None)
        return f"{self.name}: {self.text()[-500:]}\n{shares}"

    def end(self):
        self.check()
        self.world.stasis("kill", self.name, "-s", "KILL")
        self.world.stasis("wait", self.name, expect=137)
        self.world.stasis("delete", self.name)


def shares(world):
    return {share["job"]: share for share in world.stasis("share", "--json").json()["shares"]}


def await_shares(world, condition, what):
    def holds():
        try:
            return condition(shares(world))
        except KeyError:  # a daemon that has just started does not know all programs yet
            return False
    wait_until(holds, PATIENCE_S, lambda: f"{what}: {world.stasis('share')}")


def six_on_a_gpu_for_two(world, daemon):
    jobs = []
    for number in range(6):
        jobs.append(Job(world, f"p{number}", "--mib", "96", "--rest", "1.0"))
        jobs[-1].await_ready()
    demand(all(job.failures() == 0 for job in jobs), "an allocation failed although others could leave")
    shown = shares(world)
    demand(set(shown) == {job.name for job in jobs}, lambda: str(shown))
    for _ in range(3):
        until = time.monotonic() + 2
        wait_until(lambda: time.monotonic() > until, 10, "time stands still")
        daemon.kill()
        daemon.start()
    for job in jobs:
        job.await_rounds(2)
    demand(sum(share["swaps"] for share in shares(world).values()) > 0, "nothing was swapped")
    for job in jobs:
        job.end()


def an_allocation_that_needs_room(world):
    idle = Job(world, "idle", "--mib", "160", "--rest", "1000")
    idle.await_ready()
    grows = Job(world, "grows", "--mib", "32", "--grow", "128", "--rest", "0.5", share="--share=batch")
    grows.await_ready()
    grows.await_rounds(1)
    demand(grows.failures() == 0, "an allocation failed although another program could leave")
    demand({name: share["class"] for name, share in shares(world).items()} == {"idle": "interactive", "grows": "batch"},
           lambda: str(shares(world)))
    demand(shares(world)["idle"]["state"] in ("suspended", "context kept"), lambda: str(shares(world)))
    by_hand(world, idle)
    world.stasis("dump", idle.name)
    await_shares(world, lambda all_shares: idle.name not in all_shares, "a dumped job shares")
    # A restore takes only free memory, and a swap of a program that was killed may still be in progress.
    grows.end()
    wait_until(lambda: world.gpus()[0]["free_bytes"] > 200 << 20, PATIENCE_S, lambda: str(world.gpus()))
    world.stasis("restore", idle.name)
    await_shares(world, lambda all_shares: all_shares.get(idle.name, {}).get("pinned"), "the pin is lost")
    world.stasis("suspend", idle.name)
    demand(any(data_in(world)), "a suspended program has no data")
    idle.end()
    wait_until(lambda: not any(data_in(world)), PATIENCE_S, "the data of a program that was killed is not freed")


def data_in(world):
    return world.arenas.glob("[0-9]*.data")


def by_hand(world, idle):
    world.stasis("resume", idle.name)
    world.stasis("share", "pin", idle.name)
    demand(shares(world)[idle.name]["pinned"], lambda: str(shares(world)))
    demand(shares(world)[idle.name]["state"] == "awake", lambda: str(shares(world)))
    world.stasis("share", "unpin", idle.name)
    world.stasis("suspend", idle.name)
    await_shares(world, lambda all_shares: all_shares[idle.name]["by_hand"], "the suspend by hand is not known")
    world.stasis("share", "pin", idle.name)


def two_over_two_gpus(world):
    jobs = [Job(world, name, "--mib", "130", "--gpus", "2", "--rest", "0.7") for name in ("wide-a", "wide-b")]
    for job in jobs:
        job.await_ready()
    for job in jobs:
        job.await_rounds(2)
    for job in jobs:
        job.end()


def watched(world):
    watch = world.begin("share", "--watch")
    job = Job(world, "seen", "--mib", "8", "--rest", "1000")
    job.await_ready()
    wait_until(lambda: re.search(r"^seen +interactive +awake", watch.out, re.M), PATIENCE_S, lambda: f"{watch}")
    os.kill(watch.pid, signal.SIGINT)
    watch.wait()
    job.end()


def gpus_named_by_number(world):
    """CUDA_VISIBLE_DEVICES of a program is a matter of its own driver: the daemon sees the GPU that the program has."""
    uuids = [gpu["uuid"] for gpu in sorted(world.gpus(), key=lambda gpu: gpu["index"])]
    alone = Job(world, "alone", "--mib", "150", "--rest", "1.5", env={"CUDA_VISIBLE_DEVICES": "0"})
    pair = [Job(world, name, "--mib", "150", "--rest", "1.5", env={"CUDA_VISIBLE_DEVICES": "1"}) for name in ("n1", "n2")]
    for job in (alone, *pair):
        job.await_ready()
    for job in (alone, *pair):
        job.await_rounds(1)
    shown = shares(world)
    for job, uuid in ((alone, uuids[0]), (pair[0], uuids[1]), (pair[1], uuids[1])):
        demand([gpu["uuid"] for gpu in shown[job.name]["gpus"]] == [uuid], lambda: f"{uuids}: {shown}")  # noqa: B023
        demand(job.failures() == 0, "an allocation failed although others could leave")  # noqa: B023
    demand(shown["alone"]["swaps"] == 0 and all(shown[job.name]["swaps"] > 0 for job in pair), lambda: f"{shown}")
    for job in (alone, *pair):
        job.end()


def one_that_is_stopped(world):
    """A program that does not answer stays where it is. The others go on, and so does it when it continues."""
    stopped = Job(world, "stopped", "--mib", "60", "--rest", "1000")
    stopped.await_ready()
    pid = stopped.shown()["pid"]
    os.kill(pid, signal.SIGSTOP)
    pair = [Job(world, name, "--mib", "110", "--rest", "1.5") for name in ("turn-a", "turn-b")]
    for job in pair:
        job.await_ready()
    for job in pair:
        job.await_rounds(2)
    await_shares(world, lambda all_shares: "does not answer" in all_shares[stopped.name].get("problem", ""),
                 "a stopped program is not named")
    shown = shares(world)
    demand(shown[stopped.name]["swaps"] == 0, lambda: f"it was moved: {shown}")
    demand(sum(shown[job.name]["swaps"] for job in pair) > 0, lambda: f"the others wait: {shown}")
    os.kill(pid, signal.SIGCONT)
    await_shares(world, lambda all_shares: not all_shares[stopped.name].get("problem"), "it does not answer again")
    for job in (stopped, *pair):
        job.end()


def run(world):
    world.set_gpu(2, GPU_MEMORY)
    world.env["STASIS_HELPER_IDLE_S"] = "5"
    world.stasis("run", "--share", "--", "true", expect=3)
    demand("needs the daemon" in world.last.err, lambda: str(world.last))
    world.env["STASIS_SHARE"] = "interactive"
    world.stasis("run", "--", "true", expect=3)
    for options in (["run", "--share=off"], ["run", "--no-agent"], ["--no-daemon", "run"]):
        world.stasis(*options, "--", "true")
    del world.env["STASIS_SHARE"]
    daemon = DaemonFixture(world).start()
    world.stasis("run", "--share", "--no-agent", "--", "true", expect=2)
    world.stasis("run", "--share=often", "--", "true", expect=2)
    world.stasis("share", "pin", "nobody", expect=3)
    an_allocation_that_needs_room(world)
    two_over_two_gpus(world)
    watched(world)
    gpus_named_by_number(world)
    one_that_is_stopped(world)
    six_on_a_gpu_for_two(world, daemon)
    daemon.drain()


if __name__ == "__main__":
    sys.exit(one_world.main(run))
