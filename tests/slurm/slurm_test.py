#!/usr/bin/env python3
"""Jobs of Slurm that are requeued, preempted, cancelled and suspended continue where they stopped, or end completely.

Real slurmctld, slurmd and munged; an ordinary user; two nodes with a software GPU each."""
import argparse
import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))
import isolate  # noqa: E402
import processes  # noqa: E402
from processes import wait_until  # noqa: E402
from world import demand, isolate_keep  # noqa: E402

import cluster as slurm  # noqa: E402
from cluster import ALICE, SOON_S  # noqa: E402

REQUEUES = 3

STEP = "srun -n1 --stasis {workloads}/counter --memory 32M"
BATCH = """\
x=kept
{workloads}/counter --memory 32M
echo "after the program: $? $x"
"""


def script(cluster, text):
    return text.format(workloads=cluster.world.workloads)


def images(cluster, job):
    return sorted(cluster.world.images.glob(f"slurm-{job.id}.*"))


def finish(cluster, job):
    """Ends the counter, and checks that nothing of the job is left."""
    demand(job.send("quit") == "BYE", "the counter does not end")
    job.await_output("^EXIT-SUCCESS$")
    wait_until(lambda: job.state() == "COMPLETED", SOON_S, lambda: f"job {job.id} is {job.state()}:\n{job.tell()}")
    demand(not images(cluster, job), lambda: f"images of a job that has finished: {images(cluster, job)}")
    expect_gone(cluster, job)


def expect_gone(cluster, job):
    """Checks that no process of alice and no GPU memory is left."""
    def left():
        cluster.world.reap()
        return [pid for pid in processes.all_pids() if uid(pid) == ALICE]
    wait_until(lambda: not left(), SOON_S, lambda: "left: " + ", ".join(map(processes.describe, left())))
    demand(free_memory(cluster), lambda: f"GPU memory is left: {cluster.world.gpus()}")
    cluster.world.stasis("recover", expect=None)
    demand(not cluster.world.leftovers(), lambda: f"left: {cluster.world.leftovers()}")


def uid(pid):
    status = processes.told(pid, "status")
    return int(status.split(b"\nUid:")[1].split()[0]) if status else -1


def free_memory(cluster):
    return all(gpu["free_bytes"] == gpu["total_bytes"] for gpu in cluster.world.gpus())


def requeued_step(cluster):
    """A step is dumped by SIGTERM and restored after each requeue."""
    job = cluster.submit(script(cluster, STEP), "--gres=gpu:1", f"--nodelist={cluster.nodes[0]}")
    job.await_state("RUNNING")
    job.expect_count()
    for _ in range(REQUEUES):
        job.requeue()
        job.expect_count()
    finish(cluster, job)


def requeued_script(cluster):
    """A batch script without srun is dumped whole, and continues behind its program with its variables."""
    job = cluster.submit(script(cluster, BATCH), "--gres=gpu:1", "--stasis=keep=1", f"--nodelist={cluster.nodes[0]}")
    job.await_state("RUNNING")
    job.expect_count()
    for _ in range(REQUEUES):
        job.requeue()
        job.expect_count()
        demand(len(images(cluster, job)) == 1, lambda: f"keep=1 keeps {images(cluster, job)}")
    finish(cluster, job)
    demand("after the program: 0 kept" in job.output(), lambda: f"the script:\n{job.output()}")


def cancelled(cluster):
    """scancel ends the program, after a dump that nobody restores."""
    job = cluster.submit(script(cluster, STEP), "--gres=gpu:1")
    job.await_state("RUNNING")
    job.expect_count()
    cluster.command("scancel", job.id, user=ALICE)
    wait_until(lambda: job.state() == "CANCELLED", SOON_S, lambda: f"job {job.id} is {job.state()}")
    expect_gone(cluster, job)
    for image in images(cluster, job):
        cluster.world.stasis("image", "delete", image.name)


def suspended(cluster):
    """scontrol suspend frees the GPU, and resume fills it again."""
    job = cluster.submit(script(cluster, STEP), "--gres=gpu:1")
    job.await_state("RUNNING")
    job.expect_count()
    cluster.command("scontrol", "suspend", job.id)
    job.await_state("SUSPENDED")
    wait_until(lambda: free_memory(cluster), SOON_S, lambda: f"the GPU is not free: {cluster.world.gpus()}\n{job.tell()}")
    cluster.command("scontrol", "resume", job.id)
    job.await_state("RUNNING")
    job.expect_count()
    finish(cluster, job)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--only", default="", help="only those whose name contains this")
    options = parser.parse_args()
    if slurm.missing():
        print(f"SKIPPED: this machine has no {', '.join(slurm.missing())}")
        return isolate.SKIPPED
    isolate.enter(isolate_keep(options.build))
    tests = [test for test in (requeued_step, requeued_script, cancelled, suspended) if options.only in test.__name__]
    code = slurm.run(options.build, *tests)
    for folder in pathlib.Path("/tmp").glob("world-*"):
        shutil.rmtree(folder, ignore_errors=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
