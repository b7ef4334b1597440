#!/usr/bin/env python3
"""Jobs of Slurm whose programs' process ids are taken when they are requeued continue in a pid namespace.

Real slurmctld, slurmd and munged; an ordinary user; two nodes with a software GPU each."""

import contextlib
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))
import processes  # noqa: E402
from processes import wait_until  # noqa: E402
from world import demand  # noqa: E402

from cluster import ALICE, GPU, SOON_S  # noqa: E402
from common import (BATCH, STEP, expect_gone, finish, free_memory, images, main, programs, requeue,  # noqa: E402
                    script, taken, uid)


def expect_apart(cluster, inner, is_apart=True):
    """Checks that the counters have these pids, and whether they are in pid namespaces of their own."""
    found = programs(cluster)
    demand(set(found) == set(inner), lambda: f"the pids of the counters are {found}, not {inner}")
    demand(all((pid != number) == is_apart for number, pid in found.items()), lambda: f"{found}")


def taken_ids(cluster):
    """A step and a batch script continue although other processes have their pids; the script also if only the pid of its
    child is taken. They are dumped in their pid namespaces, and later restored on the other node in and outside of such
    namespaces."""
    step = cluster.submit(script(cluster, STEP), GPU, f"--nodelist={cluster.nodes[0]}")
    batch = cluster.submit(script(cluster, BATCH), GPU, "--stasis", f"--nodelist={cluster.nodes[1]}")
    jobs = [step, batch]
    for job in jobs:
        job.expect_count()
    inner = sorted(programs(cluster))
    for _ in range(2):
        requeue(cluster, *jobs)
        jobs.reverse()
        with taken(cluster, inner):
            for job, node in zip(jobs, cluster.nodes):
                job.start_now(node)
            for job in jobs:
                job.expect_count()
            expect_apart(cluster, inner)
    requeue(cluster, *jobs)
    for job, node in zip(jobs, cluster.nodes):
        job.start_now(node)
    for job in jobs:
        job.expect_count()
        demand("starts over" not in job.output(), job.tell)
    expect_apart(cluster, inner, is_apart=False)
    finish(cluster, step, may_run=[batch])
    finish(cluster, batch)
    demand("after the program: 0 kept" in batch.output(), batch.tell)


def taken_thread(cluster):
    """A step continues although a process has the id of one of its threads."""
    job = cluster.submit(script(cluster, STEP), GPU)
    job.expect_count()
    inner, = programs(cluster)
    threads = {int(name) for name in os.listdir(f"/proc/{inner}/task")} - {inner}
    demand(threads, "the counter has one thread")
    requeue(cluster, job)
    with taken(cluster, [max(threads)]):
        job.start_now()
        job.expect_count()
        demand("starts over" not in job.output(), job.tell)
        expect_apart(cluster, [inner])
        finish(cluster, job)


@contextlib.contextmanager
def apart(cluster, step=STEP, *options):
    """Yields a job whose program runs in a pid namespace, because its pid is taken."""
    job = cluster.submit(script(cluster, step), GPU, *options)
    job.expect_count()
    inner = list(programs(cluster))
    requeue(cluster, job)
    with taken(cluster, inner):
        job.start_now()
        job.expect_count()
        expect_apart(cluster, inner)
        yield job


def delete_images(cluster, job):
    for image in images(cluster, job):
        cluster.world.stasis("image", "delete", image.name)


def capabilities(pid):
    """Returns the permitted capabilities, as a number."""
    return int(processes.told(pid, "status").split(b"\nCapPrm:")[1].split()[0], 16)


def rights(cluster):
    """The init process of the pid namespace belongs to the user and has CAP_CHECKPOINT_RESTORE alone; the program has no
    capability and no descriptor of the socket. The init process has no descriptor of the task."""
    with apart(cluster) as job:
        init, = cluster.world.named("stasis-pidns-in")  # the kernel cuts names to 15 characters
        program, = programs(cluster).values()
        demand((uid(init), capabilities(init)) == (ALICE, 1 << 40), lambda: f"{processes.told(init, 'status')}")
        demand((uid(program), capabilities(program)) == (ALICE, 0), lambda: f"{processes.told(program, 'status')}")
        open_files = [os.readlink(f"/proc/{init}/fd/{fd}") for fd in sorted(os.listdir(f"/proc/{init}/fd"), key=int)]
        demand(open_files[:3] == ["/dev/null"] * 3 and len(open_files) == 5 and open_files[3].startswith("socket:")
               and "signalfd" in open_files[4], lambda: f"{open_files}")
        sockets = {os.readlink(f"/proc/{pid}/fd/{fd}") for pid in cluster.world.named("stasis-step")
                   for fd in os.listdir(f"/proc/{pid}/fd")}
        held = {os.readlink(f"/proc/{program}/fd/{fd}") for fd in os.listdir(f"/proc/{program}/fd")}
        demand(held and any(name.startswith("socket:") for name in sockets), lambda: f"{held}, {sockets}")
        demand(not [name for name in held & sockets if name.startswith("socket:")], lambda: f"{held & sockets}")
        finish(cluster, job)


def commands_outside(cluster):
    """Other commands of the user see the program with its pid on the node. They suspend and resume it; a dump is refused
    and leaves it running. Slurm suspends it, too."""
    with apart(cluster) as job:
        name = f"slurm-{job.id}.0.0"
        pid, = programs(cluster).values()
        stasis = cluster.world.stasis
        shown = stasis("--no-daemon", "inspect", name, "--json").json()
        demand(shown["state"] == "running" and shown["pid"] == pid, lambda: f"{shown}, not process {pid}")
        stasis("recover")
        stasis("arena", "free")
        stasis("--no-daemon", "suspend", name)
        stasis("--no-daemon", "resume", name)
        job.expect_count()
        cluster.world.capabilities = ("checkpoint_restore",)
        refused = stasis("--no-daemon", "dump", name, expect=4)
        cluster.world.capabilities = ()
        demand("the task of Slurm" in str(refused), lambda: str(refused))
        job.expect_count()
        cluster.command("scontrol", "suspend", job.id)
        job.await_state("SUSPENDED")
        wait_until(lambda: free_memory(cluster), SOON_S, lambda: f"the GPU is not free: {cluster.world.gpus()}\n{job.tell()}")
        cluster.command("scontrol", "resume", job.id)
        job.await_state("RUNNING")
        job.expect_count()
        finish(cluster, job)


def ended(cluster):
    """scancel dumps and ends a program in a pid namespace, and a killed launcher takes it along: nothing is left, and the
    job continues from the last image."""
    step = STEP.replace("--stasis", "--stasis=every=1s,keep=2")
    with apart(cluster, step) as job:
        before = set(images(cluster, job))
        wait_until(lambda: len(set(images(cluster, job)) - before) == 2, SOON_S, lambda: f"{images(cluster, job)}\n{job.tell()}")
        for pid in cluster.world.named("stasis-step"):
            processes.end(pid)
        job.await_end("FAILED")
        expect_gone(cluster, job)
        cluster.await_idle()
        cluster.command("scontrol", "requeue", job.id)
        wait_until(lambda: job.state() == "PENDING", SOON_S, lambda: f"job {job.id} is {job.state()}")
        job.start_now()
        job.expect_count()
        demand("starts over" not in job.output(), job.tell)
        cluster.command("scancel", job.id, user=ALICE)
        job.await_end("CANCELLED")
        expect_gone(cluster, job)
    delete_images(cluster, job)


def exit_codes(cluster):
    """The exit code and the end by a signal of a program in a pid namespace are the task's."""
    step = "srun -n1 --stasis sh -c '{workloads}/counter --memory 16M; exit 7'"
    with apart(cluster, step) as job:
        demand(job.send("quit") == "BYE", "the counter does not end")
        job.await_end("FAILED")
        demand(job.field("ExitCode") == "7:0", lambda: f"exit code {job.field('ExitCode')}\n{job.tell()}")
    delete_images(cluster, job)
    with apart(cluster) as job:
        cluster.command("scancel", "--signal=USR1", f"{job.id}.0", user=ALICE)
        job.await_end("FAILED")
        demand("User defined signal 1" in job.output(), job.tell)
        expect_gone(cluster, job)
    delete_images(cluster, job)


def terminal(cluster):
    """A program on a terminal (srun --pty) continues in a pid namespace, and is dumped there."""
    step = script(cluster, STEP.replace("--stasis", "--stasis --pty"))
    with apart(cluster, f"script -qefc '{step}' /dev/null") as job:
        inner = set(programs(cluster))
        job.requeue()
        job.expect_count()
        expect_apart(cluster, inner)
        finish(cluster, job)


def opted_out(cluster):
    """With nopidns the task fails if its pid is taken, names it, and keeps its image. When the pid is free again, the job
    continues."""
    job = cluster.submit(script(cluster, STEP.replace("--stasis", "--stasis=nopidns")), GPU)
    job.expect_count()
    inner, = programs(cluster)
    requeue(cluster, job)
    with taken(cluster, [inner]):
        cluster.command("scontrol", "update", f"JobId={job.id}", "StartTime=now", check=False)
        job.await_end("FAILED")
    demand(f"process id {inner} of the image is taken by sleep" in job.output(), job.tell)
    demand("omit --stasis=nopidns" in job.output(), job.tell)
    cluster.await_idle()
    cluster.command("scontrol", "requeue", job.id)
    wait_until(lambda: job.state() == "PENDING", SOON_S, lambda: f"job {job.id} is {job.state()}")
    job.start_now()
    job.expect_count()
    finish(cluster, job)


def not_possible(cluster):
    """If the plugin cannot make the namespace, the task runs without it, and says so."""
    launchers = cluster.world.folder / "launchers"
    launchers.mkdir(mode=0o755)
    (launchers / "stasis-step").symlink_to(cluster.world.build / "libexec" / "stasis-step")
    job = cluster.submit(script(cluster, STEP), GPU)
    job.expect_count()
    requeue(cluster, job)
    cluster.set_plugin(f"{cluster.plugin} launcher={launchers}/stasis-step")
    job.start_now()
    job.expect_count()
    demand("without a pid namespace of its own: " in job.output(), job.tell)
    demand("stasis-pidns-init: No such file" in job.output(), job.tell)
    finish(cluster, job)
    cluster.set_plugin(cluster.plugin)


def without_gpu(cluster):
    """A requeued job without GPUs finds no child that it has not started."""
    text = """read children </proc/$$/task/$$/children
echo "children: $children"
echo "restarts: ${SLURM_RESTART_COUNT:-0}"
exec sleep 1000
"""
    job = cluster.submit(text, "--stasis")
    job.await_output("^restarts: 0$")
    cluster.command("scontrol", "requeue", job.id)
    job.await_state("PENDING")
    cluster.await_idle()
    job.start_now()
    job.await_output("^restarts: 1$")
    demand(job.output().count("children: \n") == 2, job.tell)
    cluster.command("scancel", "--signal=KILL", "--full", job.id)
    wait_until(lambda: job.state() not in ("RUNNING", "COMPLETING"), SOON_S, job.tell)
    expect_gone(cluster, job)


TESTS = (taken_ids, taken_thread, rights, commands_outside, ended, exit_codes, terminal, opted_out, not_possible, without_gpu)

if __name__ == "__main__":
    sys.exit(main(TESTS))
