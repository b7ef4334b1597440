#!/usr/bin/env python3
"""Jobs of Slurm with several steps, tasks or a terminal, and jobs for which time, memory or disk is too small.

Real slurmctld, slurmd and munged; an ordinary user; two nodes with a software GPU each."""

import json
import os
import pathlib
import re
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))
import isolate  # noqa: E402
from file_systems import file_system  # noqa: E402
import processes  # noqa: E402
from processes import wait_until  # noqa: E402
from world import demand  # noqa: E402

from cluster import ALICE, GPU, SOON_S  # noqa: E402
from common import (BATCH, STEP, arenas, expect_gone, finish, free_memory, images, main, programs, requeue,  # noqa: E402
                    script, taken)


def expect_continues(job, counters=1):
    for counter in range(counters):
        job.expect_count(counter)
    job.requeue()
    for counter in range(counters):
        job.expect_count(counter)
    demand("starts over" not in job.output(), job.tell)


def two_steps(cluster, beside):
    """Two steps that run at the same time are two targets with an image each."""
    step = "srun --overlap -n1 --stasis {workloads}/counter --memory 16M &\n"
    job = cluster.submit(script(cluster, step + step + "wait"), GPU, "--mem=400", f"--nodelist={cluster.nodes[0]}")
    expect_continues(job, 2)
    finish(cluster, job, may_run=[beside])


def two_tasks(cluster, beside):
    """Two tasks of a step are two targets, too."""
    job = cluster.submit(script(cluster, "srun --stasis {workloads}/counter --memory 16M"), "-n2", GPU,
                         "--mem=400", f"--nodelist={cluster.nodes[0]}")
    expect_continues(job, 2)
    finish(cluster, job, may_run=[beside])


def unknown_repository(cluster):
    """A job whose images could not be restored from its repository is not started."""
    job = cluster.submit("echo began", GPU, "--stasis=to=other", f"--nodelist={cluster.nodes[0]}")
    job.await_end("FAILED")
    demand("repository other would not be restored" in job.output() and "began" not in job.output(), job.tell)


def several_nodes(cluster):
    """A step over several nodes is refused when it starts, unless its processes hold no connections between them."""
    job = cluster.submit("srun -n2 -N2 --stasis echo began", "-N2", "-n2", GPU)
    job.await_end("FAILED")
    demand("runs on 2 nodes" in job.output() and "--stasis=multinode" in job.output() and "began" not in job.output(), job.tell)
    apart = script(cluster, "srun -n2 -N2 --stasis=multinode {workloads}/counter --memory 16M")
    job = cluster.submit(apart, "-N2", "-n2", GPU)
    expect_continues(job, 2)
    finish(cluster, job)


def array(cluster):
    """Each job of an array has a job id of its own, and so its own images: here in a repository (--stasis=to=REPO)."""
    remote = cluster.world.folder / "remote"
    remote.mkdir()
    os.chown(remote, ALICE, ALICE)
    cluster.world.stasis("key", "create")
    cluster.world.stasis("repo", "add", "fleet", remote, "--trust")
    first = cluster.submit(script(cluster, STEP.replace("--stasis", "--stasis=to=fleet")), GPU, "--array=1-2")
    jobs = [first.of_array(number) for number in (1, 2)]
    for job in jobs:
        job.await_state("RUNNING")
        job.expect_count()

    def pushed():
        return [image["name"] for image in cluster.world.stasis("image", "ls", "-R", "fleet", "--json").json()["images"]]
    expect_continues(jobs[0])
    demand(len(pushed()) == 1 and f"slurm-{jobs[0].id}." in pushed()[0], lambda: f"in the repository: {pushed()}")
    demand(not images(cluster, jobs[0]), lambda: f"on this machine: {images(cluster, jobs[0])}")
    jobs[1].expect_count()
    finish(cluster, jobs[0], may_run=jobs)
    demand(not pushed(), lambda: f"left in the repository: {pushed()}")
    finish(cluster, jobs[1])


def terminal(cluster):
    """A program on a terminal (srun --pty) continues on the terminal of the next step."""
    step = script(cluster, "srun --pty -n1 --stasis {workloads}/counter --memory 16M")
    job = cluster.submit(f"script -qefc '{step}' /dev/null", GPU)
    expect_continues(job)
    finish(cluster, job)


def restarted_daemons(cluster):
    """slurmd is restarted while a job runs, and stasisd is killed while it suspends the job's program."""
    job = cluster.submit(script(cluster, STEP), GPU, f"--nodelist={cluster.nodes[0]}")
    job.expect_count()
    cluster.restart(cluster.nodes[0])
    world = cluster.world
    world.stasis("daemon", "start", env={"STASIS_FAULT": "gpu-lock:before:hang"})
    suspend = world.begin("suspend", f"slurm-{job.id}.0.0")
    world.await_phase("gpu-lock")
    for pid in (*world.daemons(), *world.named("stasis-worker")):
        processes.end(pid)
    demand(suspend.wait().code == 6, lambda: str(suspend))
    expect_continues(job)
    finish(cluster, job)


def time_limit(cluster):
    """A minute before its time limit a job gets SIGTERM (cli_filter.lua). It is dumped and requeued by its exit code.
    Other jobs run while Slurm, which looks at time limits twice a minute, does not notice it."""
    job = cluster.submit(script(cluster, BATCH), GPU, "--stasis", "--time=10", f"--nodelist={cluster.nodes[1]}")
    job.await_state("RUNNING")
    job.expect_count()
    end = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + 50))
    cluster.command("scontrol", "update", f"JobId={job.id}", f"EndTime={end}")
    two_steps(cluster, job)
    two_tasks(cluster, job)
    unknown_repository(cluster)
    wait_until(lambda: job.field("Restarts") == "1", SOON_S, job.tell)
    if job.await_state("PENDING", "RUNNING") == "PENDING":  # it also starts by itself
        cluster.command("scontrol", "update", f"JobId={job.id}", "TimeLimit=60", check=False)
        job.start_now()
    job.expect_count()
    finish(cluster, job)


def full_disk(cluster):
    """If the image does not fit on the disk, the program gets SIGTERM, and the reason is in the job's output."""
    small = cluster.world.folder / "small"
    small.mkdir()
    isolate.mount("tmpfs", str(small), "tmpfs", 0, f"size=8m,uid={ALICE},gid={ALICE},mode=700")
    cluster.world.accept_mounts()
    job = cluster.submit(script(cluster, "exec {workloads}/counter --memory 32M"), GPU, "--stasis",
                         f"--export=ALL,STASIS_IMAGE_DIR={small}/images")
    job.expect_count()
    cluster.command("scancel", job.id, user=ALICE)
    job.await_output("^EXIT-SUCCESS$")
    demand("space" in job.output(), job.tell)
    expect_gone(cluster, job)
    demand(not list(small.glob("images/*")), lambda: f"left: {list(small.glob('images/*'))}")
    isolate.unmount(str(small))


def memory_limit(cluster):
    """GPU data that does not fit into the memory limit of the job goes through files in the folder of images. If that is
    in memory too, the dump is refused before anything is done, and the program gets SIGTERM. Without the check the
    kernel would kill the program."""
    limited = (script(cluster, "exec {workloads}/counter --memory 400M"), GPU, "--stasis", "--mem=600")
    job = cluster.submit(*limited)
    job.expect_count()
    cluster.command("scancel", job.id, user=ALICE)
    job.await_output("^EXIT-SUCCESS$")
    demand("memory" in job.output() and "limit" in job.output(), job.tell)
    job.await_end("CANCELLED")
    expect_gone(cluster, job)
    disk = cluster.world.folder / "disk"
    with file_system(cluster.world, disk, 2 << 30, on_disk=True):
        os.chown(disk, ALICE, ALICE)
        job = cluster.submit(*limited, f"--export=ALL,STASIS_IMAGE_DIR={disk}/images")
        job.expect_count()
        expect_continues(job)
        finish(cluster, job)
        demand(not list(disk.glob("images/.*")), lambda: f"left: {list(disk.glob('images/.*'))}")


def reserved(cluster):
    """With --stasis=reserve host memory is ready before the program is suspended or dumped: no more than leaves as much
    free below the job's memory limit. A step that is killed leaves none."""
    step = STEP.replace("--stasis", "--stasis=reserve").replace("32M", "96M")
    job = cluster.submit(script(cluster, step), GPU, "--mem=800")
    for start in range(2):
        job.expect_count()
        wait_until(lambda: len(ready(cluster)) == 1 and size(ready(cluster)[0]) >= 64 << 20, SOON_S,
                   lambda: f"{arenas(cluster)}\n{job.tell()}")
        demand(size(ready(cluster)[0]) < 250 << 20, lambda: f"more is ready than is free: {size(ready(cluster)[0])}")
        if start == 0:
            cluster.command("scontrol", "requeue", job.id)
            job.await_state("PENDING")
            # Slurm requeues the job while its step still dumps the program.
            wait_until(lambda: not cluster.world.named("stasis-step"), SOON_S, job.tell)
            # Another test has killed the daemon.
            listed = cluster.world.stasis("--no-daemon", "checkpoints", f"slurm-{job.id}.0.0", "--json")
            accounts = listed.json()["checkpoints"]
            demand(any(one["kind"] == "suspend" for one in accounts),
                   lambda accounts=accounts: f"it was not suspended: {accounts}\n{job.tell()}")
            demand(not arenas(cluster), lambda: f"left: {arenas(cluster)}")
            cluster.await_idle()
            job.start_now()
    demand("starts over" not in job.output(), job.tell)
    inode = os.stat(ready(cluster)[0]).st_ino
    suspend(cluster, job)
    demand([os.stat(path).st_ino for path in arenas(cluster)] == [inode], lambda: f"{arenas(cluster)}")
    cluster.command("scontrol", "resume", job.id)
    job.expect_count()
    cluster.command("scancel", "--signal=KILL", f"{job.id}.0")
    job.await_end("FAILED")
    for image in images(cluster, job):
        cluster.world.stasis("image", "delete", image.name)
    expect_gone(cluster, job)


def suspend(cluster, job):
    """Suspends a job. Slurm stops all of its processes after 2 s, which do not suffice on a very busy machine."""
    for _ in range(5):
        cluster.command("scontrol", "suspend", job.id)
        job.await_state("SUSPENDED")
        try:
            return wait_until(lambda: free_memory(cluster), 10, "the GPU is not empty")
        except processes.Late:
            cluster.command("scontrol", "resume", job.id)
            job.expect_count()
    demand(False, f"the GPU is not empty: {cluster.world.gpus()}")


def ready(cluster):
    return [path for path in arenas(cluster) if path.name.startswith("ready-")]


def size(path):
    return path.stat().st_blocks * 512


def short_kill_wait(cluster):
    """A dump that takes longer than KillWait is killed with the step. The next start continues from the image before.
    A program that cannot be dumped and ignores signals is killed, too, with its children."""
    fault = "[ \"$SLURM_RESTART_COUNT\" != 1 ] || export STASIS_FAULT=commit:before:hang\n"
    job = cluster.submit(fault + script(cluster, STEP), GPU, f"--nodelist={cluster.nodes[0]}")
    deaf = cluster.submit(script(cluster, "trap '' TERM INT HUP QUIT USR1 USR2\n{workloads}/counter --memory 16M &\nwait"),
                          GPU, "--stasis", f"--nodelist={cluster.nodes[1]}", "--export=ALL,STASIS_FAULT=commit:before:fail")
    deaf.expect_count()
    expect_continues(job)
    dumped = job.answers[0] - 1
    before = images(cluster, job)
    cluster.set_kill_wait(1)  # Slurm waits for at least 5 s
    cluster.command("scancel", deaf.id)
    cluster.command("scontrol", "requeue", job.id)
    wait_until(lambda: not cluster.world.named("stasis-step"), SOON_S, lambda: f"the step is not killed:\n{job.tell()}")
    cluster.set_kill_wait(30)
    demand(images(cluster, job) == before, lambda: f"images: {images(cluster, job)}")
    deaf.await_end("CANCELLED")
    demand("a fault was injected" in deaf.output() and "EXIT-SUCCESS" not in deaf.output(), deaf.tell)
    (cluster.world.state / "slurm" / f"slurm-{deaf.id}.batch").unlink()  # the copy of the script of an unfinished job
    job.await_state("PENDING")
    cluster.await_idle()
    job.start_now()
    job.answers[0] = dumped
    job.expect_count()
    finish(cluster, job)


def requeued_at_the_end_of_a_restore(cluster):
    """SIGTERM while the program runs already, but the restore has not ended."""
    hold = cluster.world.folder / "hold"
    hold.touch()
    fault = f'[ "$SLURM_RESTART_COUNT" != 1 ] || export STASIS_FAULT=adopt:after:hold={hold}\n'
    job = cluster.submit(fault + script(cluster, STEP), GPU)
    job.expect_count()
    job.requeue()
    cluster.world.await_phase("adopt")
    job.expect_count()
    job.requeue()
    job.expect_count()
    demand("starts over" not in job.output(), job.tell)
    finish(cluster, job)


def cancelled_while_suspended(cluster):
    """Slurm kills a suspended job without SIGTERM. The memory that has its GPU data is freed all the same: by the plugin,
    or by the Epilog if the plugin cannot do it. Both leave the memory of another suspended job alone."""
    plugin = cluster.plugin
    cluster.set_epilog(False)
    jobs = [cluster.submit(script(cluster, STEP), GPU, f"--nodelist={cluster.nodes[0]}")]
    jobs[0].expect_count()
    launcher = cluster.folder / "launcher"  # the plugin does not find the command by this name
    launcher.symlink_to(cluster.world.build / "libexec" / "stasis-step")
    cluster.set_plugin(f"{plugin} launcher={launcher}")
    jobs.append(cluster.submit(script(cluster, STEP), GPU, f"--nodelist={cluster.nodes[1]}"))
    jobs[1].expect_count()
    for job in jobs:
        cluster.command("scontrol", "suspend", job.id)
    for job in jobs:
        job.await_state("SUSPENDED")
    for left in (1, 0):
        wait_until(lambda left=left: len(arenas(cluster)) == left + 1, SOON_S,
                   lambda: f"{arenas(cluster)}\n{jobs[0].tell()}\n{jobs[1].tell()}")
        job = jobs[1 - left]
        cluster.command("scancel", job.id)
        job.await_end("CANCELLED")
        wait_until(lambda left=left: len(arenas(cluster)) == left, SOON_S, lambda: f"memory: {arenas(cluster)}")
        cluster.set_epilog(True)
    cluster.set_plugin(plugin)
    cluster.await_idle()
    expect_gone(cluster, job)


def checked(cluster):
    """`stasis slurm check` finds what is wrong with this cluster, as a user and as root."""
    def findings(user, expect):
        done = subprocess.run([*cluster.words_of(user), cluster.world.bin / "stasis", "--json", "slurm", "check"],
                              env=cluster.env, text=True, capture_output=True, timeout=120, check=False)
        demand(done.returncode == expect, lambda: f"{done.returncode}: {done.stdout}{done.stderr}")
        return {one["id"]: one["level"] for one in json.loads(done.stdout)["findings"] if one["level"] != "ok"}
    # KillWait is short here, and the nodes have one disk.
    expected = {"dump-time": "warning", "memory-limit": "note", "images": "warning"}
    for user in (ALICE, 0):
        found = findings(user, 0)
        demand(found == {**expected, **({"images": "note"} if user == 0 else {})}, lambda found=found: f"{found}")
    config = cluster.command(cluster.world.bin / "stasis", "slurm", "config")
    demand(f"\noptional {cluster.plugin}\n" in config, lambda: config)
    cluster.set_plugin("/no/such/stasis.so")
    found = findings(ALICE, 5)
    demand(found.get("plugin") == "cannot", lambda: f"{found}")
    cluster.set_plugin(cluster.plugin)


def nothing_left(cluster):
    """After all jobs, neither a mount, a control group of a job, an image nor a file of a task is left."""
    cluster.await_idle()
    groups = [str(group) for group in cluster.control_groups() if "/job_" in str(group)]
    files = [str(path) for path in (*cluster.world.images.glob("*"), *cluster.world.state.glob("slurm/*"))]
    demand(not groups, lambda: f"control groups: {groups}")
    demand(cluster.epilog_log() == "", lambda: f"the Epilog: {cluster.epilog_log()}")
    demand(not cluster.world.leftovers(), lambda: f"left: {cluster.world.leftovers()}")
    cancelled = [path for path in files if not path.endswith((".env", ".log", ".err"))]
    demand(not cancelled, lambda: f"files: {files}")


def private_folders(cluster):
    """Jobs with /tmp and /dev/shm of their own (job_container/tmpfs) continue on another node, in other such folders, and
    with a journal of that node (folders.run)."""
    cluster.use_private_folders()
    run = cluster.world.folder / "run"
    jobs = [cluster.submit(script(cluster, f"ls -A /tmp /dev/shm\nexport STASIS_RUN_DIR={run}-%u-$SLURMD_NODENAME\n{text}"),
                           GPU, f"--nodelist={node}", *options)
            for text, node, options in zip((STEP, BATCH), cluster.nodes, ((), ("--stasis",)))]
    for job in jobs:
        job.expect_count()
        demand(job.output().startswith("/dev/shm:\n\n/tmp:\n"), job.tell)
    pids = sorted(programs(cluster))
    requeue(cluster, *jobs)
    with taken(cluster, pids[:1]):  # one of the programs continues in a pid namespace
        for job, node in zip(jobs, reversed(cluster.nodes)):
            job.start_now(node)
        for job in jobs:
            job.expect_count()
        found = programs(cluster)
        demand(sorted(found) == pids and found[pids[0]] != pids[0], lambda: f"the pids of the counters: {found}, not {pids}")
        finish(cluster, jobs[0], may_run=jobs)
        finish(cluster, jobs[1])
    demand(all((run.parent / f"run-{ALICE}-{node}" / "journal").is_dir() for node in cluster.nodes), "no journal of a node")
    cluster.await_idle()
    kept = [path for node in cluster.nodes for path in cluster.mounts_of(node) if re.search(r"/private/.*/\d+", path)]
    demand(not kept, lambda: f"mounts: {kept}")


TESTS = (time_limit, several_nodes, array, terminal, restarted_daemons, full_disk, memory_limit, reserved, short_kill_wait,
         requeued_at_the_end_of_a_restore, cancelled_while_suspended, checked, nothing_left, private_folders)

if __name__ == "__main__":
    sys.exit(main(TESTS, epilog=True, place="/mnt"))
