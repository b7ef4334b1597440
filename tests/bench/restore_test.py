"""Tests `stasis bench --restore` on softgpu: output, plot and leftovers, but never speed."""

import pathlib
import signal
import sys
import xml.etree.ElementTree as xml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))

import one_world  # noqa: E402
import schemas  # noqa: E402
from processes import wait_until  # noqa: E402
from world import demand  # noqa: E402

MIB = 1 << 20
SMALL = ["bench", "--restore", "--size", "8MiB", "--rounds", "1"]
SOURCES = ["page cache", "tmpfs", "disk"]
SHARED = pathlib.Path("/dev/shm")


def expect_nothing_left(world, disk):
    demand(not list(disk.iterdir()), f"left in {disk}: {list(disk.iterdir())}")
    demand(not list(SHARED.glob("bench-*")), f"left in {SHARED}: {list(SHARED.glob('bench-*'))}")
    jobs = world.stasis("ps", "-a", "--json").json()["jobs"]
    demand(not jobs, f"jobs are left: {jobs}")
    world.expect_clean()


def reports(world, disk):
    plot = world.folder / "plot.svg"
    found = world.stasis(*SMALL, "--driver-rounds", "1", "-d", disk, "--svg", plot, "--json").json()
    if schemas.is_able():
        schemas.compare("bench-restore", found)
    demand([(s["path"], s["source"]) for s in found["series"]]
           == [(path, source) for path in ("agent", "driver") for source in SOURCES], "not every path and source")
    for series in found["series"]:
        shared = series["path"] == "agent"
        demand((series["dump"]["shared_bytes"] >= 8 * MIB) == shared, f"the dump: {series['dump']['shared_bytes']}")
        demand(len(series["rounds"]) == 1, f"{len(series['rounds'])} rounds")
        for name in ("storage", "cpu", "gpu", "command", "first_answer"):
            demand(series[name]["median"] > 0, f"{name}: {series[name]}")
        total = series["rounds"][0]["restore"]["total_s"]
        demand(series["command"]["median"] >= total, f"the command took {series['command']}, the restore {total}")
        for stage in series["rounds"][0]["stages"].values():
            demand(stage <= total + 1e-6, f"a stage of {stage} s in a restore of {total} s")
    words = [node.text or "" for node in xml.parse(plot).getroot().iter("{http://www.w3.org/2000/svg}text")]
    for wanted in ("driver, disk", "first answer", "storage"):
        demand(any(wanted in word for word in words), f"the plot does not say '{wanted}'")
    expect_nothing_left(world, disk)


def text(world, disk):
    out = world.stasis(*SMALL, "--driver-rounds", "0", "-d", disk).out
    for wanted in ("agent, page cache", "agent, disk", "first answer", "CPU side", "contents verified",
                   "on the software GPU: the times say nothing"):
        demand(wanted in out, lambda: f"'{wanted}' is missing:\n{out}")
    demand("driver, disk" not in out, lambda: f"more than was measured:\n{out}")
    expect_nothing_left(world, disk)


def failure(world, disk):
    """The driver fails in a restore: its error is reported, and nothing is left."""
    world.gpu_fault("cuCheckpointProcessRestore:1=fail")
    command = world.stasis(*SMALL, "--driver-rounds", "0", "-d", disk, expect=None)
    world.gpu_fault("")
    demand(command.code == 1 and "page cache" in command.err and "restore" in command.err, lambda: str(command))
    expect_nothing_left(world, disk)


def interrupted(world, disk):
    command = world.begin("bench", "--restore", "--size", "8MiB", "--rounds", "500", "-d", disk)
    wait_until(lambda: list(disk.glob("bench-*/image")), 60, "no image")
    command.process.send_signal(signal.SIGINT)
    command.wait()
    demand(command.code == 1 and "cancelled" in command.err, lambda: str(command))
    expect_nothing_left(world, disk)


def refusals(world, disk):
    for words, wanted in ((["--allocation", "1MiB"], "--allocation"), (["--remote", "x"], "--remote"), (["--thp"], "--thp")):
        command = world.stasis(*SMALL, *words, expect=2)
        demand(wanted in command.err, lambda: str(command))
    expect_nothing_left(world, disk)


def run(world):
    disk = world.folder / "disk"
    disk.mkdir(mode=0o700)
    world.stasis("gpu", "ls")  # starts softgpu's broker outside of any job
    for case in (refusals, reports, text, failure, interrupted):
        case(world, disk)
        print(f"PASS  {case.__name__}", flush=True)


sys.exit(one_world.main(run))
