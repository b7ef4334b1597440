#!/usr/bin/env python3
"""Jobs of Slurm that are requeued, preempted, cancelled and suspended continue where they stopped, or end completely.

Real slurmctld, slurmd and munged; an ordinary user; two nodes with a software GPU each."""
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))
import processes  # noqa: E402
from processes import wait_until  # noqa: E402
from world import demand  # noqa: E402

import cluster as slurm  # noqa: E402
from cluster import ALICE, GPU, SOON_S  # noqa: E402
from common import BATCH, STEP, expect_gone, finish, free_memory, images, main, script  # noqa: E402

def requeued(cluster):
    """Two jobs, a step and a batch script without srun, exchange their nodes, and so their GPUs, at each requeue. They
    are dumped by SIGTERM and restored. The script continues behind its program with its variables."""
    step = cluster.submit(script(cluster, STEP), GPU, f"--nodelist={cluster.nodes[0]}")
    batch = cluster.submit(script(cluster, BATCH), GPU, f"--nodelist={cluster.nodes[1]}", "--stasis=keep=1")
    jobs = [step, batch]
    for job in jobs:
        job.await_state("RUNNING")
        job.expect_count()
    for _ in range(cluster.requeues):
        jobs.reverse()
        for job in jobs:
            cluster.command("scontrol", "requeue", job.id)
        for job in jobs:
            job.await_state("PENDING")
        for job, node in zip(jobs, cluster.nodes):
            job.start_now(node)
        for job in jobs:
            job.expect_count()
        used = [gpu["total_bytes"] - gpu["free_bytes"] for gpu in cluster.world.gpus()]
        demand((used[0] > used[1]) == (jobs[0] is batch), lambda: f"used memory of the GPUs: {used}")
        demand(len(images(cluster, batch)) == 1, lambda: f"keep=1 keeps {images(cluster, batch)}")
    for job in jobs:
        demand("starts over" not in job.output(), job.tell)
    finish(cluster, step, may_run=[batch])
    finish(cluster, batch)
    demand("after the program: 0 kept" in batch.output(), lambda: f"the script:\n{batch.output()}")
    now = f"restarts: 0, now {cluster.requeues} on {cluster.nodes[jobs.index(batch)]}\n"
    demand(now in batch.output(), lambda: f"no line {now!r}:\n{batch.output()}")
    print(f"   {2 * cluster.requeues} requeues")


def preempted(cluster):
    """A job with more rights takes the GPU, three times. Slurm sends SIGTERM to the step, which exits with code 75 in
    the grace time; RequeueExit requeues the job."""
    job = cluster.submit(script(cluster, STEP), GPU, "--partition=grace", f"--nodelist={cluster.nodes[0]}")
    job.await_state("RUNNING")
    job.expect_count()
    for _ in range(3):
        preempt(cluster, job)
    finish(cluster, job)


def preempted_script(cluster):
    """The batch script gets SIGTERM at the beginning of the grace time by --signal, which cli_filter.lua adds."""
    job = cluster.submit(script(cluster, BATCH), GPU, "--stasis", "--partition=grace",
                         f"--nodelist={cluster.nodes[0]}")
    job.await_state("RUNNING")
    job.expect_count()
    preempt(cluster, job)
    finish(cluster, job)
    demand("after the program: 0 kept" in job.output(), lambda: f"the script:\n{job.output()}")


def preempted_at_once(cluster):
    """Without a grace time the job is requeued before SIGTERM, and KillWait is the time for the dump."""
    job = cluster.submit(script(cluster, STEP), GPU, f"--nodelist={cluster.nodes[0]}")
    job.await_state("RUNNING")
    job.expect_count()
    preempt(cluster, job)
    finish(cluster, job)


def preempt(cluster, job):
    """Submits a job that needs almost all memory of the job's GPU, and checks that the job continues afterwards."""
    began = time.monotonic()
    taker = cluster.submit(script(cluster, "{workloads}/counter --memory 460M --rounds 2"), GPU,
                           "--partition=high", f"--nodelist={cluster.nodes[0]}", "--mem=0")
    taker.await_state("RUNNING", "COMPLETED")
    print(f"   the other job runs {time.monotonic() - began:.1f} s after it was submitted")
    taker.await_output("^EXIT-SUCCESS$")
    if job.await_state("PENDING", "RUNNING") == "PENDING":
        job.start_now()
    job.expect_count()
    demand("starts over" not in job.output(), job.tell)


def await_images(cluster, job):
    """Waits until the last two images were begun after this call."""
    seen = set(images(cluster, job))
    before = len(seen)

    def look():
        seen.update(images(cluster, job))
        # The first new one may be of a dump that was in progress.
        return len(seen) >= before + 3
    wait_until(look, SOON_S, lambda: f"only {seen}\n{job.tell()}")


def killed(cluster):
    """A task whose launcher is killed, with the rest of the step by Slurm, continues from the last image that
    --stasis=every has written. If the newest image is damaged, from the one before."""
    step = "srun -n1 --stasis=every=1s,keep=2 {workloads}/counter --memory 32M"
    job = cluster.submit(script(cluster, step), GPU)
    for is_damaged in (False, True):
        job.await_state("RUNNING")
        job.expect_count()
        await_images(cluster, job)
        for pid in cluster.world.named("stasis-step"):
            processes.end(pid)
        job.await_end("FAILED")
        cluster.await_idle()
        if is_damaged:
            dumps = cluster.world.stasis("checkpoints", f"slurm-{job.id}.0.0", "--json").json()["checkpoints"]
            newest = [dump["image"] for dump in dumps if dump["exists"]][-1]
            (pathlib.Path(newest) / "manifest.pb").write_bytes(b"damaged")
        cluster.command("scontrol", "requeue", job.id)
        wait_until(lambda: job.state() == "PENDING", SOON_S, lambda: f"job {job.id} is {job.state()}")
        job.start_now()
    job.expect_count()
    demand("trying the image before it" in job.output(), lambda: job.output())
    # A dump that was killed after its commit has left an image that the job's history lacks.
    finish(cluster, job, may_leave=images(cluster, job))


def missing_parts(cluster):
    """A missing plugin breaks no job, and without the launcher a task runs without Stasis."""
    plugin = cluster.plugin
    for words, options in (("/no/such/stasis.so", ()), (f"{plugin} launcher=/no/such/launcher", ("--stasis",)),
                           (f"{plugin} partitions=low", ("--stasis=off",))):
        cluster.set_plugin(words)
        job = cluster.submit("ps -o comm= $PPID", GPU, *options)
        job.await_end()
        demand("slurmstepd" in job.output(), lambda job=job: job.output())
    cluster.set_plugin(f"{plugin} partitions=low,other")
    job = cluster.submit("cat /proc/$PPID/comm", GPU)
    job.await_end()
    demand("stasis-shim" in job.output(), lambda: job.output())
    cluster.set_plugin(plugin)


def script_with_steps(cluster):
    """A batch script that runs srun cannot be dumped: it begins anew, and its step continues. The step's standard error
    stays apart from its output."""
    errors = cluster.world.folder / "step.err"
    step = f"srun -n1 --stasis --open-mode=append -e {errors} " + """bash -c '
echo before >&2
{workloads}/counter --memory 32M
echo "after the program: $?" >&2'"""
    job = cluster.submit("echo begins\n" + script(cluster, step), GPU, "--stasis")
    job.await_state("RUNNING")
    job.expect_count()
    wait_until(lambda: processes.text_of(errors) == "before\n", SOON_S, lambda: f"{processes.text_of(errors)}\n{job.tell()}")
    job.requeue()
    job.expect_count()
    finish(cluster, job)
    demand(job.output().count("begins\n") == 2, lambda: f"the script:\n{job.output()}")
    told = [line for line in processes.text_of(errors).splitlines() if not line.startswith("slurmstepd")]
    demand(told == ["before", "after the program: 0"], lambda: f"{told}\n{job.tell()}")
    demand("after the program" not in job.output(), job.tell)


def without_gpu(cluster):
    """A job without GPUs is left alone: the same program, environment and rights as without --stasis."""
    text = "grep CapEff /proc/self/status; printenv LD_LIBRARY_PATH; ps -o comm= $PPID; env | grep STASIS_TASK || true"
    outputs = []
    for options in ((), ("--stasis",)):
        job = cluster.submit(text, *options)
        job.await_end()
        outputs.append(job.output())
    demand("CapEff:\t0000000000000000\n" in outputs[0] and outputs[0] == outputs[1], lambda: f"{outputs}")


def rights_of_the_program(cluster):
    """The program has no capability, and the loader's variables of its submitter."""
    job = cluster.submit("srun --stasis sh -c 'grep CapEff /proc/self/status; printenv LD_LIBRARY_PATH; "
                         "env | grep STASIS_TASK; exit 7'", GPU)
    job.await_end("FAILED")
    lines = job.output().splitlines()  # those of srun may be between those of the program
    demand("CapEff:\t0000000000000000" in lines and cluster.env["LD_LIBRARY_PATH"] in lines, lambda: job.output())
    demand("STASIS_TASK" not in job.output(), lambda: job.output())
    demand(job.field("ExitCode") == "7:0", lambda: f"exit code {job.field('ExitCode')}")
    expect_gone(cluster, job)


def prepared_task(cluster):
    """From Slurm 23.11 on, the launcher starts after TaskProlog and with the limits of the submitter. The prolog has the
    loader's variables of the submitter, and its own variables reach the program, those of the loader too."""
    if slurm.release() < (23, 11):
        print("   not with this release of Slurm")
        return
    prolog = cluster.world.folder / "prolog.sh"
    prolog.write_text("#!/bin/sh\necho export FROM_PROLOG=yes\necho export LD_LIBRARY_PATH=/prolog:$LD_LIBRARY_PATH\n")
    prolog.chmod(0o755)
    told = "pwd; ulimit -n; printenv FROM_PROLOG LD_LIBRARY_PATH; grep CapEff /proc/self/status; env | grep STASIS_TASK"
    outputs = []
    for option in ("", "--stasis"):
        job = cluster.submit(f"ulimit -n 321; srun --chdir=/var --task-prolog={prolog} {option} sh -c '{told}; exit 0'", GPU)
        job.await_end()
        outputs.append(job.output())
    wanted = ["/var", "321", "yes", f"/prolog:{cluster.env['LD_LIBRARY_PATH']}", "CapEff:\t0000000000000000"]
    demand(outputs[0].splitlines() == wanted and outputs[0] == outputs[1], lambda: f"{outputs}, not {wanted}")


def limits(cluster):
    """From Slurm 23.11 on, a program has the limits of its submitter, before and after a requeue."""
    if slurm.release() < (23, 11):
        print("   not with this release of Slurm")
        return
    job = cluster.submit("ulimit -n 1024; ulimit -s 4096; ulimit -c 0\n" + script(cluster, STEP), GPU)
    told = []
    for requeues in range(2):
        if requeues:
            job.requeue()
        job.expect_count()
        program, = cluster.world.named("counter")
        told.append(processes.told(program, "limits").splitlines())
    soft = {line[:26].strip(): line[26:].split()[0] for line in told[0]}
    demand((soft[b"Max open files"], soft[b"Max stack size"], soft[b"Max core file size"]) == (b"1024", b"4194304", b"0"),
           lambda: f"{soft}")
    demand(told[0] == told[1], lambda: f"{told}")
    finish(cluster, job)


def failed_dump(cluster):
    """If the dump fails, the program gets SIGTERM, and the reason is in the job's output."""
    job = cluster.submit(script(cluster, "exec {workloads}/counter --memory 32M"), GPU, "--stasis",
                         "--export=ALL,STASIS_FAULT=commit:before:fail")
    job.await_state("RUNNING")
    job.expect_count()
    cluster.command("scancel", job.id, user=ALICE)
    job.await_output("^EXIT-SUCCESS$")
    demand("a fault was injected" in job.output(), lambda: job.output())
    expect_gone(cluster, job)


def wrong_option(cluster):
    """A wrong option is refused before the job is submitted."""
    done = cluster.command("sbatch", "--stasis=often", "--wrap", "true", user=ALICE, check=False, errors=True)
    demand("--stasis=often" in done and "is not an option" in done, done)


def cancelled(cluster):
    """scancel ends the program, after a dump that nobody restores."""
    job = cluster.submit(script(cluster, STEP), GPU)
    job.await_state("RUNNING")
    job.expect_count()
    cluster.command("scancel", job.id, user=ALICE)
    job.await_end("CANCELLED")
    expect_gone(cluster, job)
    for image in images(cluster, job):
        cluster.world.stasis("image", "delete", image.name)


def suspended(cluster):
    """scontrol suspend frees the GPU, and resume fills it again."""
    job = cluster.submit(script(cluster, STEP), GPU)
    job.await_state("RUNNING")
    job.expect_count()
    cluster.command("scontrol", "suspend", job.id)
    job.await_state("SUSPENDED")
    wait_until(lambda: free_memory(cluster), SOON_S, lambda: f"the GPU is not free: {cluster.world.gpus()}\n{job.tell()}")
    cluster.command("scontrol", "resume", job.id)
    job.await_state("RUNNING")
    job.expect_count()
    finish(cluster, job)


TESTS = (requeued, preempted, preempted_script, preempted_at_once, killed, missing_parts, script_with_steps, without_gpu,
         rights_of_the_program, prepared_task, limits, failed_dump, wrong_option, cancelled, suspended)

if __name__ == "__main__":
    sys.exit(main(TESTS))
