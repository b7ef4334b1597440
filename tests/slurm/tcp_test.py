#!/usr/bin/env python3
"""Jobs of Slurm whose processes hold TCP connections to each other continue with these connections, if the site permits it.

Real slurmctld, slurmd and munged; an ordinary user; two nodes with a software GPU each, which share one network."""

import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))
import nftables  # noqa: E402
import processes  # noqa: E402
from processes import wait_until  # noqa: E402
from world import demand  # noqa: E402

from cluster import ALICE, GPU, SOON_S  # noqa: E402
from common import expect_gone, finish, images, main, requeue, taken, uid  # noqa: E402

CHECKPOINT_RESTORE, NET_ADMIN = 1 << 40, 1 << 12
BOTH = CHECKPOINT_RESTORE | NET_ADMIN
NAME = "tcp-pair"  # of each process of the program


def begin(cluster, options):
    """Submits a job with one step, whose two processes have a TCP connection to each other."""
    pair = cluster.world.folder / "tcp_pair.py"
    shutil.copy(pathlib.Path(__file__).resolve().parents[1] / "stage" / "tcp_pair.py", pair)
    step = f"srun -n1 --stasis{options} {sys.executable} -B {pair}"
    return cluster.submit(step, GPU, "--mem=600", f"--nodelist={cluster.nodes[0]}")


def permit(cluster, argument=" tcp=keep"):
    cluster.set_plugin(f"{cluster.plugin}{argument}")


def capabilities(pid):
    """Returns the inheritable, permitted, effective and ambient capabilities as numbers."""
    fields = dict(line.split(b":\t") for line in processes.told(pid, "status").splitlines() if b":\t" in line)
    return [int(fields[name], 16) for name in (b"CapInh", b"CapPrm", b"CapEff", b"CapAmb")]


def expect_no_rights(cluster, pids):
    """Checks that these are the program's processes, and that neither they nor their shim have a capability."""
    demand(len(pids) == 2, lambda: f"the processes of the program are {pids}")
    for pid in (*pids, *cluster.world.named("stasis-shim")):
        demand(uid(pid) == ALICE and capabilities(pid) == [0] * 4, lambda: f"{processes.told(pid, 'status')}")


def program(cluster):
    """Returns the pids of the program's processes, by their pids in their own pid namespace."""
    return {processes.inner_pid(pid): pid for pid in cluster.world.named(NAME)}


def expect_no_table():
    """Checks that CRIU's block of packets is gone, which would stay on the node of a dump."""
    demand(not nftables.criu_tables(), lambda: f"{nftables.criu_tables()}")


def kept(cluster):
    """The connection is there after a requeue to the other node and after one in a pid namespace, because a process id is
    taken, and no message is lost or doubled. Only the launcher and the init process have the capabilities."""
    permit(cluster)
    said = cluster.command("srun", "--stasis=tcp=keep,tcp=close", "true", user=ALICE, check=False, errors=True)
    demand("tcp is given twice" in said, said)  # the capability would be given, and not be used
    job = begin(cluster, "=tcp=keep,every=2s")
    job.expect_count()
    # A dump beside the running program keeps the connection, too.
    wait_until(lambda: images(cluster, job), SOON_S, job.tell)
    job.expect_count()
    first = program(cluster)
    expect_no_rights(cluster, first.values())
    launcher, = cluster.world.named("stasis-step")
    demand((uid(launcher), capabilities(launcher)[1]) == (ALICE, BOTH), lambda: f"{processes.told(launcher, 'status')}")
    requeue(cluster, job)
    expect_no_table()
    job.start_now(cluster.nodes[1])
    job.expect_count()
    expect_no_table()
    demand(program(cluster) == first, lambda: f"{program(cluster)}, not {first}")
    expect_no_rights(cluster, first.values())
    requeue(cluster, job)
    with taken(cluster, [min(first)]):
        job.start_now(cluster.nodes[0])
        job.expect_count()
        apart = program(cluster)
        demand(set(apart) == set(first) and all(pid != inner for inner, pid in apart.items()), lambda: f"{apart}")
        expect_no_rights(cluster, apart.values())
        init, = cluster.world.named("stasis-pidns-in")  # the kernel cuts names to 15 characters
        demand((uid(init), capabilities(init)[1]) == (ALICE, BOTH), lambda: f"{processes.told(init, 'status')}")
        job.requeue(cluster.nodes[1])  # dumped in the pid namespace
        job.expect_count()
        expect_no_table()
        demand("starts over" not in job.output(), job.tell)
        finish(cluster, job)


def not_asked_for(cluster):
    """Without the option the dump is refused, and the job's output says why. The launcher has the usual capability alone."""
    permit(cluster)
    job = begin(cluster, "")
    job.expect_count()
    launcher, = cluster.world.named("stasis-step")
    demand(capabilities(launcher)[1] == CHECKPOINT_RESTORE, lambda: f"{processes.told(launcher, 'status')}")
    cluster.command("scancel", "--signal=TERM", f"{job.id}.0", user=ALICE)
    job.await_end("FAILED")
    for part in ("an open TCP connection", "in a task of Slurm: --stasis=tcp=close", "the program gets SIGTERM"):
        demand(part in job.output(), job.tell)
    demand(not images(cluster, job), lambda: f"{images(cluster, job)}")
    expect_gone(cluster, job)


def not_permitted(cluster):
    """Without the argument of the site, a job that asks for it is not started."""
    permit(cluster, "")
    job = begin(cluster, "=tcp=keep")
    job.await_end("FAILED")
    demand("--stasis=tcp=keep is not permitted" in job.output() and "plugstack.conf" in job.output(), job.tell)
    demand("PORT" not in job.output(), job.tell)
    expect_gone(cluster, job)


def closed(cluster):
    """With tcp=close, which needs no argument of the site, the program continues, and its connection has ended."""
    permit(cluster, "")
    job = begin(cluster, "=tcp=close")
    job.expect_count()
    requeue(cluster, job)
    job.start_now(cluster.nodes[1])
    job.await_output("^LOST: .*intact")
    demand("starts over" not in job.output(), job.tell)
    finish(cluster, job)


TESTS = (kept, not_asked_for, not_permitted, closed)

if __name__ == "__main__":
    sys.exit(main(TESTS))
