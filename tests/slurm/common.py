"""Programs, checks and the main function of the tests of Slurm."""

import argparse
import contextlib
import os
import pathlib
import shutil
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))
import isolate  # noqa: E402
import processes  # noqa: E402
from processes import wait_until  # noqa: E402
from world import demand, isolate_keep  # noqa: E402

import cluster as slurm  # noqa: E402
from cluster import ALICE, SOON_S  # noqa: E402

STEP = "srun -n1 --stasis {workloads}/counter --memory 32M"
BATCH = """\
x=kept
{workloads}/counter --memory 64M
echo "after the program: $? $x"
read now <"$STASIS_SLURM_ENV/SLURM_RESTART_COUNT"
read node <"$STASIS_SLURM_ENV/SLURMD_NODENAME"
echo "restarts: ${{SLURM_RESTART_COUNT:-0}}, now $now on $node"
"""


def script(cluster, text):
    return text.format(workloads=cluster.world.workloads)


def images(cluster, job):
    return sorted(cluster.world.images.glob(f"slurm-{job.id}.*"))


def finish(cluster, job, may_leave=(), may_run=()):
    """Ends the job's counters, and checks that nothing of the job is left. `may_run`: other jobs, which still run."""
    for counter in job.answers or [0]:
        demand(job.send("quit", counter) == "BYE", "the counter does not end")
    job.await_end()
    demand("EXIT-SUCCESS" in job.output(), job.tell)
    left = set(images(cluster, job)) - set(may_leave)
    demand(not left, lambda: f"images of a job that has finished: {left}")
    for image in images(cluster, job):
        cluster.world.stasis("image", "delete", image.name)
    if not may_run:
        expect_gone(cluster, job)


def requeue(cluster, *jobs):
    """Requeues the jobs, which end, and returns when they can be started again."""
    for job in jobs:
        cluster.command("scontrol", "requeue", job.id)
    for job in jobs:
        job.await_state("PENDING")
    cluster.await_idle()


@contextlib.contextmanager
def taken(cluster, pids):
    """The node has other processes with these pids meanwhile."""
    for pid in pids:
        processes.spawn_with_pid(pid)
        cluster.world.own(pid)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            cluster.world.disown(pid)


def programs(cluster):
    """Returns the pid of each counter, by its pid in its own pid namespace."""
    return {processes.inner_pid(pid): pid for pid in cluster.world.named("counter")}


def expect_gone(cluster, job):
    """Checks that no process of alice, no memory of a GPU, and no memory for its data is left."""
    def left():
        cluster.world.reap()
        own = cluster.own_processes()
        return [pid for pid in processes.all_pids() if uid(pid) == ALICE and pid not in own]
    wait_until(lambda: not left(), SOON_S, lambda: "left: " + ", ".join(map(processes.describe, left())))
    demand(free_memory(cluster), lambda: f"GPU memory is left: {cluster.world.gpus()}")
    cluster.world.stasis("recover", expect=None)
    # The Epilog runs after the job.
    wait_until(lambda: not cluster.world.leftovers(), SOON_S, lambda: f"left: {cluster.world.leftovers()}")
    demand(not arenas(cluster), lambda: f"memory is left: {arenas(cluster)}")


def arenas(cluster):
    return [path for path in (*cluster.world.arenas.glob("*"), *pathlib.Path("/dev/shm").glob("stasis*/*"))
            if path.name.endswith(".data") or path.name.startswith("free-")]


def uid(pid):
    status = processes.told(pid, "status")
    return int(status.split(b"\nUid:")[1].split()[0]) if status else -1


def free_memory(cluster):
    return all(gpu["free_bytes"] == gpu["total_bytes"] for gpu in cluster.world.gpus())


def main(tests, **settings):
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--only", default="", help="only those whose name contains this")
    parser.add_argument("--requeues", type=int, default=10, help="of each of the two jobs that change nodes")
    options = parser.parse_args()
    if missing := slurm.missing(options.build):
        print(f"SKIPPED: there is no {', '.join(missing)}")
        return isolate.SKIPPED
    isolate.enter(isolate_keep(options.build))
    chosen = [test for test in tests if options.only in test.__name__]
    code = slurm.run(options.build, *chosen, requeues=options.requeues, **settings)
    for folder in pathlib.Path("/tmp").glob("world-*"):
        shutil.rmtree(folder, ignore_errors=True)
    return code
