#!/usr/bin/env python3
"""Programs that share GPUs with little host memory: the next one is refused before it starts, data goes to files, and a
full folder for these files makes programs stay where they are. Nothing is lost."""
import os
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "stage"), str(HERE.parent / "daemon")]
from daemon_fixture import DaemonFixture  # noqa: E402
import isolate  # noqa: E402
import one_world  # noqa: E402
from processes import wait_until  # noqa: E402
from share_test import PATIENCE_S, Job, await_shares, shares  # noqa: E402
from world import demand  # noqa: E402

MIB = 1 << 20
# Room for two programs of 96 MiB on the GPU, and for the data of one in host memory.
GPU_MEMORY, HOST_MEMORY, PROGRAM_MIB = "272M", "100MiB", 96


def start(world, name):
    job = Job(world, name, "--mib", str(PROGRAM_MIB), "--rest", "1.0")
    job.await_ready()
    return job


def refused_at_run(world):
    """With two programs on the GPU, a third one would need more host memory than there is."""
    world.stasis("run", "--share", "--job", "third", "--", "true", expect=None)
    demand(world.last.code != 0, "a third program was started")
    for part in ("cannot run true", "host memory does not suffice for the data of one more program that shares GPUs",
                 "`stasis share`", "share.host_memory", "folders.spill"):
        demand(part in world.last.err, lambda: f"the message does not say {part}: {world.last}")  # noqa: B023
    world.stasis("inspect", "third", expect=3)


def on_disk(world):
    """Returns the jobs whose data is in files, by `stasis ps`."""
    return re.findall(rf"^(\S+) .* {PROGRAM_MIB}\.0 MiB on disk", world.stasis("ps").out, re.M)


def all_go_on(jobs):
    for job in jobs:
        job.await_rounds(2)
        job.check()


def spilled(world, jobs):
    """Host memory has room for the data of one of them, and one more has to leave at a time."""
    wait_until(lambda: on_disk(world), PATIENCE_S, lambda: f"no data is in files: {world.stasis('ps')}")
    all_go_on(jobs)


def fill(folder):
    """Returns a file that leaves 8 MiB free. It grows with each call. Others may write at the same time."""
    filler = folder / "filler"
    with open(filler, "ab") as file:
        while (free := os.statvfs(folder)).f_bavail * free.f_frsize > 8 * MIB:
            try:
                os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), MIB)
            except OSError:
                break
    return filler


def full(world, folder, jobs):
    """No program leaves whose data would find no room. Those that wait get the GPU when there is room again."""
    filler = fill(folder)

    # A program that gets its data back frees its file, so the folder is filled again each time.
    def refused():
        fill(folder)
        world.stasis("run", "--share", "--job", "fifth", "--", "true", expect=None)
        if world.last.code != 0:
            return True
        world.stasis("wait", "fifth")
        world.stasis("delete", "fifth")
        return False
    wait_until(refused, PATIENCE_S, "a fifth program is started each time")
    demand("host memory does not suffice" in world.last.err, lambda: f"a fifth program was refused: {world.last}")

    def told(all_shares):
        fill(folder)
        return any(share["problem"] for share in all_shares.values())
    await_shares(world, told, "no program says why it waits")
    problems = " ".join(share["problem"] for share in shares(world).values())
    demand("host memory does not suffice" in problems or "No space" in problems or "full" in problems, problems)
    for job in jobs:
        job.check()
    filler.unlink()
    all_go_on(jobs)


def run(world):
    world.set_gpu(1, GPU_MEMORY)
    world.env["STASIS_HELPER_IDLE_S"] = "5"
    daemon = DaemonFixture(world).start(env={"STASIS_SHARE_HOST_MEMORY": HOST_MEMORY})
    jobs = [start(world, name) for name in ("a", "b")]
    refused_at_run(world)
    folder = world.folder / "spill"
    folder.mkdir(mode=0o700)
    isolate.mount("tmpfs", str(folder), "tmpfs", isolate.MS_NOSUID | isolate.MS_NODEV, "mode=700,size=320m")
    world.env["STASIS_SPILL_DIR"] = str(folder)
    # The user has set folders.spill, as the message says.
    jobs += [start(world, name) for name in ("c", "d")]
    spilled(world, jobs)
    full(world, folder, jobs)
    for job in jobs:
        job.end()
    daemon.drain()
    world.stasis("recover", expect=None)
    isolate.unmount(str(folder))


if __name__ == "__main__":
    sys.exit(one_world.main(run))
