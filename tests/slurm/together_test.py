#!/usr/bin/env python3
"""The tasks of a step on a node that share GPU memory and sockets are one target with --stasis=together.

Real slurmctld, slurmd and munged; an ordinary user; two nodes with a software GPU each."""

import contextlib
import os
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))
import isolate  # noqa: E402
import processes  # noqa: E402
from processes import Late, wait_until  # noqa: E402
from world import demand  # noqa: E402

from cluster import ALICE, GPU, SOON_S  # noqa: E402
from common import expect_gone, finish, free_memory, images, main, requeue, taken  # noqa: E402

TASK = pathlib.Path(__file__).resolve().parent / "together_task.py"
TASKS = 2


class Together:
    """A job with a step of TASKS tasks on each node."""

    def __init__(self, cluster, options="--stasis=together", *more, nodes=1, count=None, gpus=GPU):
        """`count`: expression of the shell, the number of tasks that are started."""
        self.cluster = cluster
        self.folder = cluster.world.folder / f"together-{len(list(cluster.world.folder.glob('together-*')))}"
        self.folder.mkdir()
        for node in range(nodes):
            (self.folder / str(node)).mkdir()
            os.chown(self.folder / str(node), ALICE, ALICE)
        self.tasks = range(TASKS * nodes)
        self.job = cluster.submit(f"srun -n{count or len(self.tasks)} {options} {sys.executable} -B {TASK} {self.folder} {TASKS}\n"
                                  "code=$?; echo \"srun: $code\"; exit $code\n",
                                  f"-N{nodes}", f"-n{len(self.tasks)}", gpus, "--mem=400", *more)

    def rounds(self, task):
        """Returns the numbers of the rounds in the job's output. Lines may be missing, because a requeue kills srun."""
        return [int(number) for number in re.findall(rf"^T{task} ROUND (\d+)$", self.job.output(), re.M)]

    def expect_all_rounds(self):
        """Checks that the output of the programs has no gap, and that none of it was copied twice."""
        for task in self.tasks:
            copied = self.rounds(task)
            demand(copied == sorted(set(copied)), lambda: f"the output of task {task} is {copied}")
        for task, ending, word in ((0, "out", "ROUND"), (1, "out", "ROUND"), (1, "err", "error output")):
            found = [int(number) for number in re.findall(rf"^T{task} {word} (\d+)$", self.written(task, ending), re.M)]
            demand(found and found == list(range(1, len(found) + 1)), lambda: f"task {task} has written {found}")

    def written(self, task, ending):
        """Returns what the program of a task has written."""
        return processes.text_of(self.cluster.world.state / "slurm" / f"slurm-{self.job.id}.0.{task}.{ending}")

    def expect_continues(self):
        """Checks that each task works on."""
        before = {task: len(self.rounds(task)) for task in self.tasks}
        for task, count in before.items():
            def look():
                demand("FAILED" not in self.job.output() and "starts over" not in self.job.output(), self.job.tell)
                ended = self.job.state() not in ("PENDING", "RUNNING")
                demand(not ended, lambda: f"the job has ended\n{self.job.tell()}")
                return len(self.rounds(task)) > count + 3
            wait_until(look, SOON_S, lambda: f"task {task} does not work on\n{self.job.tell()}")

    def quit(self, task, code, node=0):
        """Lets a task of the node end with this code."""
        path = self.folder / str(node) / f"quit-{task}"
        path.with_suffix(".new").write_text(str(code))
        path.with_suffix(".new").rename(path)

    def programs(self):
        return [pid for pid in processes.all_pids() if str(TASK).encode() in (processes.told(pid, "cmdline") or b"")
                and b"stasis" not in processes.told(pid, "cmdline").split(b"\0")[0]
                and b"srun" not in processes.told(pid, "cmdline").split(b"\0")[0]]

    def delete_images(self):
        for image in images(self.cluster, self.job):
            self.cluster.world.stasis("image", "delete", image.name)

    def state_files(self):
        return sorted(path.name for path in self.cluster.world.state.glob(f"slurm/*slurm-{self.job.id}.*"))


def apart(cluster):
    """Without the option each task is dumped alone, which its sockets and the shared memory do not allow."""
    step = Together(cluster, "--stasis")
    step.expect_continues()
    cluster.command("scancel", step.job.id, user=ALICE)
    wait_until(lambda: step.job.state() not in ("RUNNING", "COMPLETING"), SOON_S, step.job.tell)
    demand("the dump failed" in step.job.tell(), step.job.tell)
    demand(not images(cluster, step.job), lambda: f"{images(cluster, step.job)}")
    expect_gone(cluster, step.job)


def requeued(cluster):
    """The tasks continue on the other node, and while their process ids are taken. Signals reach both. One fails, which
    its launcher reports at once, and again after another requeue; the other one goes on."""
    step = Together(cluster, "--stasis=together", f"--nodelist={cluster.nodes[0]}")
    step.expect_continues()
    pids = step.programs()
    demand(len(pids) == TASKS, lambda: f"{pids}")
    for number, node in enumerate((cluster.nodes[1], cluster.nodes[0])):
        requeue(cluster, step.job)
        demand(len(images(cluster, step.job)) in (1, 2), lambda: f"{images(cluster, step.job)}")
        with taken(cluster, pids if number == 1 else []):
            step.job.start_now(node)
            step.expect_continues()
            step.expect_all_rounds()
            cluster.command("scancel", "--signal=USR1", f"{step.job.id}.0", user=ALICE)
            for task in range(TASKS):
                step.job.await_output(rf"(^T{task} USR1$(.|\n)*){{{number + 1}}}")
            if number == 1:  # dumped in the pid namespace
                requeue(cluster, step.job)
                step.job.start_now(node)
                step.expect_continues()
    step.quit(1, 3)
    step.job.await_output("task 1: Exited with exit code 3")
    before = len(step.rounds(0))
    wait_until(lambda: len(step.rounds(0)) > before, SOON_S, step.job.tell)
    requeue(cluster, step.job)
    step.job.start_now()
    wait_until(lambda: step.job.output().count("task 1: Exited with exit code 3") == 2, SOON_S, step.job.tell)
    before = len(step.rounds(0))
    wait_until(lambda: len(step.rounds(0)) > before + 1, SOON_S, step.job.tell)
    step.expect_all_rounds()
    step.quit(0, 0)
    step.job.await_end("FAILED")
    demand("srun: 3" in step.job.output(), step.job.tell)
    step.delete_images()
    expect_gone(cluster, step.job)


def several_nodes(cluster):
    """The tasks of each node are one target, also if the step runs on several nodes."""
    step = Together(cluster, "--stasis=together,multinode", nodes=2)
    step.expect_continues()
    requeue(cluster, step.job)
    demand([name.name.split(".")[2][:2] for name in images(cluster, step.job)] == ["n0", "n1"], lambda: f"{images(cluster, step.job)}")
    step.job.start_now()
    step.expect_continues()
    for node, first in ((0, 0), (1, 2)):
        step.quit(1, 0, node)
        wait_until(lambda: step.written(first + 1, "code") == "0\n", SOON_S, step.job.tell)  # noqa: B023
        step.quit(0, 0, node)
    step.job.await_end()
    demand(not images(cluster, step.job) and not step.state_files(), lambda: f"{step.state_files()}")
    expect_gone(cluster, step.job)


def frees_gpu(cluster, job):
    """Suspends the job. If the GPU is not free then, Slurm has stopped all processes, which it does after 2 s. Then resumes
    the job and returns False."""
    cluster.command("scontrol", "suspend", job.id)
    job.await_state("SUSPENDED")
    with contextlib.suppress(Late):
        wait_until(lambda: free_memory(cluster), 5, "")
        return True
    cluster.command("scontrol", "resume", job.id)
    job.await_state("RUNNING")
    return False


def suspended(cluster):
    """scontrol suspend frees the GPU of all tasks. When all have ended with 0, nothing is left."""
    step = Together(cluster)
    step.expect_continues()
    wait_until(lambda: frees_gpu(cluster, step.job), SOON_S, lambda: f"the GPU is not free: {cluster.world.gpus()}\n{step.job.tell()}")
    cluster.command("scontrol", "resume", step.job.id)
    step.job.await_state("RUNNING")
    step.expect_continues()
    step.expect_all_rounds()
    step.quit(1, 0)
    wait_until(lambda: step.written(1, "code") == "0\n", SOON_S, step.job.tell)
    step.quit(0, 0)
    step.job.await_end()
    demand(not images(cluster, step.job) and not step.state_files(), lambda: f"{step.state_files()}")
    expect_gone(cluster, step.job)


def refused_dump(cluster):
    """If the dump fails, all programs get SIGTERM."""
    small = cluster.world.folder / "small"
    small.mkdir()
    isolate.mount("tmpfs", str(small), "tmpfs", 0, f"size=1m,uid={ALICE},gid={ALICE},mode=700")
    cluster.world.accept_mounts()
    step = Together(cluster, "--stasis=together", f"--export=ALL,STASIS_IMAGE_DIR={small}/images")
    step.expect_continues()
    cluster.command("scancel", step.job.id, user=ALICE)
    for task in range(TASKS):  # a cancelled job does not show it
        wait_until(lambda: f"T{task} TERM" in step.written(task, "out"), SOON_S, step.job.tell)  # noqa: B023
    demand("the dump failed" in step.job.tell(), step.job.tell)
    expect_gone(cluster, step.job)
    isolate.unmount(str(small))


def killed(cluster):
    """If the leader is killed, all tasks end, and continue from the last image. If a member is killed, so is its program."""
    step = Together(cluster, "--stasis=together,every=1s")
    step.expect_continues()
    wait_until(lambda: images(cluster, step.job), SOON_S, step.job.tell)
    launchers = [pid for pid in cluster.world.named("stasis-step") if b"--member\0000/" in (processes.told(pid, "cmdline") or b"")]
    demand(len(launchers) == 1, lambda: f"{launchers}")
    processes.end(launchers[0])
    step.job.await_end("FAILED")
    demand("the launcher of the first task of the step on this node has ended" in step.job.tell(), step.job.tell)
    expect_gone(cluster, step.job)
    cluster.await_idle()
    cluster.command("scontrol", "requeue", step.job.id)
    wait_until(lambda: step.job.state() == "PENDING", SOON_S, lambda: f"job {step.job.id} is {step.job.state()}")
    count = len(step.rounds(1))
    step.job.start_now()
    wait_until(lambda: len(step.rounds(1)) > count + 2, SOON_S, step.job.tell)
    demand("starts over" not in step.job.output() and "FAILED" not in step.job.output(), step.job.tell)
    members = [pid for pid in cluster.world.named("stasis-step") if b"--member\0001/" in (processes.told(pid, "cmdline") or b"")]
    demand(len(members) == 1, lambda: f"{members}")
    processes.end(members[0])
    step.job.await_output("so its program is killed")
    step.job.await_end("FAILED")
    step.delete_images()
    expect_gone(cluster, step.job)


def bound_gpus(cluster):
    """Tasks that Slurm binds to GPUs are refused at the start, whatever the variables of CUDA say: in control groups all
    tasks see index 0. With --gpu-bind=none, options of the job have no effect."""
    per_task = "--gpus-per-task=1"
    for options, gpus, bind in (("--gpu-bind=single:2", GPU, "single:2"), ("--ntasks-per-gpu=2", GPU, "single:2"),
                                ("", per_task, "per_task:1")):
        step = Together(cluster, f"--stasis=together {options}", gpus=gpus)
        step.job.await_end("FAILED")
        for part in ("SLURMD_TRES_BIND is ", f"gpu:{bind}", "--gpu-bind=none"):
            demand(part in step.job.output(), step.job.tell)
        demand("ROUND" not in step.job.output() and not step.state_files(), lambda: f"{step.state_files()}\n{step.job.tell()}")  # noqa: B023
    step = Together(cluster, "--stasis=together --gpu-bind=none", gpus=per_task)
    step.expect_continues()
    cluster.command("scancel", "--signal=KILL", step.job.id, user=ALICE)
    wait_until(lambda: step.job.state() not in ("RUNNING", "COMPLETING"), SOON_S, step.job.tell)
    expect_gone(cluster, step.job)


def fewer_tasks(cluster):
    """A requeued step with one task in place of two is refused, and its images stay."""
    step = Together(cluster, count="$((2 - ${SLURM_RESTART_COUNT:-0}))")
    step.expect_continues()
    requeue(cluster, step.job)
    before = images(cluster, step.job)
    demand(len(before) == 1, lambda: f"{before}")
    step.job.start_now()
    step.job.await_end("FAILED")
    demand("the step has other tasks on this node" in step.job.output() and "starts over" not in step.job.output()
           and images(cluster, step.job) == before, step.job.tell)
    step.delete_images()
    expect_gone(cluster, step.job)


def one_task(cluster):
    """The option also applies to a single task, which continues on the other node."""
    job = cluster.submit(f"srun -n1 --stasis=together {cluster.world.workloads}/counter --memory 32M", GPU,
                         f"--nodelist={cluster.nodes[0]}")
    job.expect_count()
    requeue(cluster, job)
    demand([image.name.split(".")[2][:2] for image in images(cluster, job)] == ["n0"], lambda: f"{images(cluster, job)}")
    job.start_now(cluster.nodes[1])
    job.expect_count()
    finish(cluster, job)


TESTS = (apart, requeued, several_nodes, suspended, refused_dump, killed, bound_gpus, fewer_tasks, one_task)

if __name__ == "__main__":
    sys.exit(main(TESTS))
