#!/usr/bin/env python3
"""arena.reserve: host memory is made ready for the first suspends of jobs while they run, and given back after them."""
import os
import sys

from share_test import PATIENCE_S, DaemonFixture, Job, data_in, demand, one_world, wait_until

MIB = 1 << 20


def arenas(world):
    return world.stasis("arena", "ls", "--json").json()["arenas"]


def ready_bytes(world, pid=None):
    return sum(arena["size_bytes"] for arena in arenas(world)
               if arena["state"] == "ready" and pid in (None, arena["pid"]))


def await_ready(world, daemon, job, mib):
    """Waits until memory for this job is ready, and the worker that made it ready has ended."""
    pid = job.shown()["pid"]
    wait_until(lambda: ready_bytes(world, pid) >= mib * MIB and not daemon.workers(), PATIENCE_S,
               lambda: f"{job.name}, {pid}: {world.stasis('arena', 'ls')}\n{job.about()}")
    return pid


def file_of(world, pid):
    files = [path for path in world.arenas.iterdir() if path.suffix == ".data" and f"{pid}-" in path.name]
    demand(len(files) == 1, lambda: str(files))
    return files[0]


def end(job, *options):
    """Ends a job without looking at its memory."""
    job.world.stasis(*options, "kill", job.name, "-s", "KILL")
    job.world.stasis(*options, "wait", job.name, expect=137)
    job.world.stasis(*options, "delete", job.name)


def the_first_suspend_is_warm(world, daemon):
    job = Job(world, "first", "--mib", "200", "--rest", "0.3")
    job.await_ready()
    pid = await_ready(world, daemon, job, 200)
    ready = file_of(world, pid)
    demand(ready.name.startswith("ready-"), lambda: str(ready))
    inode = os.stat(ready).st_ino
    account = world.stasis("suspend", "first", "--json").json()
    demand(account["shared_bytes"] >= 200 * MIB, lambda: str(account))
    demand(account["cold_bytes"] == 0, lambda: f"{account['cold_bytes']} bytes were not ready")
    demand(os.stat(file_of(world, pid)).st_ino == inode, "the suspend did not use what was ready")
    demand(ready_bytes(world) == 0, lambda: str(arenas(world)))
    world.stasis("resume", "first")
    job.await_rounds(2)
    job.check()
    end(job)
    wait_until(lambda: not any(world.arenas.glob(f"*{pid}-*")), PATIENCE_S, lambda: str(arenas(world)))


def a_job_that_does_not_share(world, daemon):
    job = Job(world, "grows", "--mib", "64", "--grow", "100", "--rest", "0.3", share="--share=off")
    job.await_ready()
    job.await_rounds(1)
    pid = await_ready(world, daemon, job, 164)
    demand(not world.stasis("share", "--json").json()["shares"], lambda: str(world.stasis("share")))
    # Memory that is ready can be freed by hand, and a suspend works without it.
    world.stasis("arena", "free")
    demand(ready_bytes(world) == 0, lambda: str(arenas(world)))
    world.stasis("suspend", "grows")
    world.stasis("resume", "grows")
    job.await_rounds(2)
    job.check()
    end(job)
    wait_until(lambda: not any(world.arenas.glob(f"*{pid}-*")), PATIENCE_S, lambda: str(arenas(world)))


def a_daemon_that_is_killed(world, daemon):
    job = Job(world, "orphan", "--mib", "96", "--rest", "1000")
    job.await_ready()
    await_ready(world, daemon, job, 96)
    daemon.kill()
    end(job, "--no-daemon")
    demand(ready_bytes(world) > 0, "the memory was freed before the next survey")
    daemon.start()
    wait_until(lambda: ready_bytes(world) == 0, PATIENCE_S, lambda: str(arenas(world)))


def the_limit(world, daemon):
    daemon.drain()
    daemon.start(env={"STASIS_ARENA_RESERVE_LIMIT": "32MiB"})
    job = Job(world, "large", "--mib", "96", "--rest", "1000")
    job.await_ready()
    await_ready(world, daemon, job, 32)
    demand(ready_bytes(world) == 32 * MIB, lambda: str(arenas(world)))
    end(job)


def without_a_daemon(world):
    """`arena ready --wait` follows a job that is deleted and created again. Memory of running programs can be kept."""
    keeper = world.begin("arena", "ready", "--wait", "again")
    for _ in range(2):
        job = Job(world, "again", "--mib", "64", "--rest", "1000", share="--share=off")
        job.await_ready()
        pid = job.shown()["pid"]
        wait_until(lambda pid=pid: ready_bytes(world, pid) >= 64 * MIB, PATIENCE_S,
                   lambda: f"{world.stasis('arena', 'ls')}\n{keeper}")
        world.stasis("arena", "free", "--keep-of-running")
        demand(ready_bytes(world, pid) >= 64 * MIB, lambda: str(arenas(world)))
        end(job)
        world.stasis("arena", "free", "--keep-of-running")
        demand(ready_bytes(world) == 0, lambda: str(arenas(world)))
    keeper.process.kill()
    keeper.wait()


def run(world):
    world.set_gpu(1, "2G")
    world.env["STASIS_ARENA_RESERVE"] = "auto"
    world.env["STASIS_HELPER_IDLE_S"] = "60"
    # Without a daemon nothing is made ready, and jobs run all the same.
    world.stasis("run", "--", "true")
    without_a_daemon(world)
    daemon = DaemonFixture(world).start()
    the_first_suspend_is_warm(world, daemon)
    a_job_that_does_not_share(world, daemon)
    a_daemon_that_is_killed(world, daemon)
    the_limit(world, daemon)
    daemon.drain()
    world.stasis("arena", "free")  # ends the mover
    demand(not any(data_in(world)), lambda: str(arenas(world)))


if __name__ == "__main__":
    sys.exit(one_world.main(run))
