"""Tests `stasis bench` on softgpu: actions, output and leftovers, but never speed."""

import argparse
import contextlib
import os
import pathlib
import signal
import sys
import traceback
import xml.etree.ElementTree as xml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))

import isolate  # noqa: E402
import processes  # noqa: E402
import schemas  # noqa: E402
from processes import wait_until  # noqa: E402
from world import World, demand, isolate_keep  # noqa: E402

MIB = 1 << 20
SMALL = ["bench", "--size", "32MiB"]
SHARED_OUT = {"data-room", "gate-close", "tree-check", "data-export", "data-release", "gpu-control", "gpu-lock",
              "gpu-checkpoint", "data-save", "data-commit"}
SHARED_BACK = {"load-room", "gpu-control", "gpu-restore", "gpu-unlock", "data-load", "data-return"}


class Machine:
    def __init__(self, build):
        self.world = World(build, memory="1G")
        self.arena = self.world.folder / "arena"
        self.arena.mkdir(mode=0o700)
        self.world.env["STASIS_ARENA_DIR"] = str(self.arena)
        # The free GPU memory, for later comparison.
        self.free = self.gpu_free()

    def gpu_free(self):
        return self.world.gpus()[0]["free_bytes"]

    def bench(self, *words, pieces="8MiB", driver_rounds=0, **more):
        return self.world.stasis(*SMALL, "--allocation", pieces, "--rounds", 2, "--driver-rounds", driver_rounds,
                                 *words, **more)

    def await_end(self, name):
        """Waits until no process of that name is left. Some may still be exiting."""
        def left():
            self.world.reap()
            return [processes.describe(p) for p in processes.named(name, os.getpid())]
        wait_until(lambda: not left(), 60, lambda: f"left: {left()}")

    def has_data(self):
        """Returns true if the arena contains a file. Files may come and go meanwhile."""
        with contextlib.suppress(FileNotFoundError):
            return any(path.stat().st_size for path in self.arena.glob("*.data"))

    def expect_nothing_left(self):
        for name in ("blocks", "stasis-mover"):
            self.await_end(name)
        wait_until(lambda: not list(self.arena.iterdir()), 60, lambda: f"left in the arena: {list(self.arena.iterdir())}")
        wait_until(lambda: self.gpu_free() == self.free, 60,
                   lambda: f"{self.free - self.gpu_free()} bytes of GPU memory are not back")
        suspended = self.world.state / "run" / "suspended"
        demand(not suspended.is_dir() or not list(suspended.iterdir()), "a suspended process is remembered")
        self.world.expect_clean()


def names(stats):
    return {phase["name"] for phase in stats["phases"]}


def check_stats(stats):
    times = stats["seconds"]
    demand(0 < times["min"] <= times["median"] <= times["max"], f"times {times}")
    demand(stats["phases"][0]["name"] == "look", "the first phase is not the look")


def whole_run(machine):
    """Two allocation sizes, JSON output and the plot."""
    plot = machine.world.folder / "plot.svg"
    found = machine.bench("--svg", plot, "--json", pieces="8MiB,1MiB", driver_rounds=1).json()
    if schemas.is_able():
        schemas.compare("bench", found)
    demand(found["driver"]["kind"] == "softgpu" and found["times_mean_something"] is False, "softgpu is not named")
    demand(found["size_bytes"] == 32 * MIB, f"size {found['size_bytes']}")
    demand([(run["allocations"], run["allocation_bytes"]) for run in found["shared"]] == [(4, 8 * MIB), (32, MIB)],
           "not the allocations that were asked for")
    for run in found["shared"]:
        demand(len(run["rounds"]) == 2, f"{len(run['rounds'])} warm rounds")
        limits_kept = len(run["stacks_kept_rounds"])
        demand(limits_kept == (3 if run is found["shared"][0] else 0), f"{limits_kept} rounds with stack limits kept")
        for side in ("cold", "warm"):
            check_stats(run[side]["suspend"])
            check_stats(run[side]["resume"])
        demand(SHARED_OUT <= names(run["warm"]["suspend"]), f"{names(run['warm']['suspend'])}")
        demand(SHARED_BACK <= names(run["warm"]["resume"]), f"{names(run['warm']['resume'])}")
        for round_ in [run["cold_round"], *run["rounds"]]:
            for verb in ("suspend", "resume"):
                account = round_[verb]
                demand(account["path"] in ("shared", "mixed"), f"{verb} took the {account['path']} path")
                demand(account["shared_bytes"] >= 32 * MIB, f"{verb} carried {account['shared_bytes']}")
            # Only the mover's context is left in GPU memory, without the program's data.
            demand(round_["held_bytes"] < 32 * MIB, f"{round_['held_bytes']} are in use while suspended")
    demand(len(found["driver_alone"]) == 1 and len(found["driver_alone"][0]["rounds"]) == 1, "the driver's rounds")
    for rounds in (found["driver_alone"][0]["rounds"], found["control"]["rounds"]):
        for round_ in rounds:
            demand(round_["suspend"]["path"] == "opaque", "the driver alone did not carry it")
            demand(round_["suspend"]["shared_bytes"] == 0, "the data plane had a part in it")
    demand(found["driver_alone"][0]["suspend"]["driver_calls_s"]["median"] > 0, "no time of the driver's calls")
    bare = found["control"]["rounds"][0]["suspend"]["device_bytes"]
    demand(0 < bare < 32 * MIB, f"a bare context of {bare} bytes")
    for key in ("to_host_bytes_per_s", "to_gpu_bytes_per_s"):
        demand(found["wire"][key] > 0, f"the wire's {key}")
    slowest = max(found["control"]["suspend"]["driver_calls_s"]["median"],
                  found["size_bytes"] / found["wire"]["to_host_bytes_per_s"])
    demand(abs(found["limit"]["suspend_s"] - slowest) < 1e-6, f"limit {found['limit']}")
    demand(found["hashing"]["bytes"] == 64 << 20 and found["hashing"]["bytes_per_s"] > 0, f"{found['hashing']}")
    ratios = {ratio["name"]: ratio for ratio in found["ratios"]}
    demand(set(ratios) == {"suspend_over_limit", "resume_over_limit", "cold_over_warm_suspend", "suspend_speedup",
                           "resume_speedup", "hashing_tb_per_s", "suspend_of_32_over_first", "resume_of_32_over_first"}, f"{set(ratios)}")
    warm = found["shared"][0]["warm"]["suspend"]["seconds"]["median"]
    demand(abs(ratios["suspend_over_limit"]["value"] - warm / slowest) < 1e-6, f"{ratios['suspend_over_limit']}")
    root = xml.parse(plot).getroot()
    demand(root.tag == "{http://www.w3.org/2000/svg}svg", f"a plot of {root.tag}")
    words = [node.text or "" for node in root.iter("{http://www.w3.org/2000/svg}text")]
    for wanted in ("data-save", "gpu-control", "driver alone", "limit"):
        demand(any(wanted in word for word in words), f"the plot does not say '{wanted}'")
    demand("href" not in plot.read_text() and "url(" not in plot.read_text(), "the plot needs something else")
    machine.expect_nothing_left()


def text(machine):
    out = machine.bench().out
    for wanted in ("suspend, warm, 4 x 8.0 MiB", "wire, to the GPU", "hashing of blocks", "phases of a warm suspend", "data-save",
                   "at most 1.10", "on the software GPU: the times say nothing"):
        demand(wanted in out, lambda: f"'{wanted}' is missing:\n{out}")
    demand("driver alone" not in out and "met" not in out.split(), lambda: f"more than was measured:\n{out}")
    machine.expect_nothing_left()


def reserved_memory_stays(machine):
    machine.world.stasis("arena", "reserve", "40MiB")
    found = machine.bench("--json").json()
    demand(found["arena_reserved_bytes"] >= 40 * MIB, "the reserved memory is not named")
    arenas = machine.world.stasis("arena", "ls", "--json").json()["arenas"]
    demand([a["state"] for a in arenas] == ["free"], f"reserved memory is now {arenas}")
    machine.world.stasis("arena", "free")
    machine.expect_nothing_left()


def huge_pages(machine):
    """Checks the machine's setting during and after the measurement. A file replaces the setting: the word that was
    written last comes first, and the word in brackets stays."""
    setting = "/sys/kernel/mm/transparent_hugepage/enabled"
    if not os.path.exists(setting):
        print("SKIPPED  this kernel has no transparent huge pages")
        return
    stand_in = machine.world.folder / "enabled"
    stand_in.write_text("always madvise [never]\n")
    isolate.mount(str(stand_in), setting, flags=isolate.MS_BIND)
    try:
        found = machine.bench("--thp", "--json", driver_rounds=1).json()
        demand([run["huge_pages"] for run in found["driver_alone"]] == ["madvise", "always"], "not both settings")
        demand(found["machine"]["huge_pages"] == "never", "the machine's own setting is not named")
        demand(stand_in.read_text().startswith("never"), lambda: f"it is {stand_in.read_text()} now")
        stand_in.write_text("always madvise [never]\n")
        found = machine.bench("--json", driver_rounds=1).json()
        demand([run["huge_pages"] for run in found["driver_alone"]] == ["never"], "not as it is")
        demand(stand_in.read_text().startswith("always"), "touched without --thp")
    finally:
        isolate.unmount(setting)
    machine.expect_nothing_left()


def refusals(machine):
    """Rejected before anything is started."""
    def refused(code, words, *texts):
        command = machine.world.stasis(*words, expect=code)
        for wanted in texts:
            demand(wanted in command.err, lambda: f"'{wanted}' is missing:\n{command}")
        demand(command.out == "", lambda: f"output besides the message:\n{command}")
        machine.expect_nothing_left()

    refused(1, ["bench", "--size", "2GiB"], "GPU 0", "--size")
    refused(1, ["bench", "--size", "512TiB", "--allocation", "1TiB"], "--size")
    refused(2, ["bench", "--size", "lots"], "lots")
    refused(2, ["bench", "--size", "8MiB", "--allocation", "16MiB"], "--allocation 16MiB", "--size 8MiB")
    refused(2, ["bench", "--size", "8MiB", "--allocation", "4096"], "1MiB")
    refused(2, ["bench", "--rounds", "0"], "--rounds")
    refused(2, ["bench", "--driver-rounds", "-1"], "--driver-rounds")
    refused(3, ["bench", "--gpu", "7"], "7")
    refused(3, [*SMALL, "--allocation", "8MiB", "--svg", machine.world.folder / "no" / "plot.svg"], "plot.svg")


def plot_without_python(machine):
    """A plot that cannot be drawn does not lose the measurements."""
    plot = machine.world.folder / "none.svg"
    command = machine.bench("--svg", plot, "--json", expect=1, env={"PATH": str(machine.world.folder)})
    demand(command.json()["size_bytes"] == 32 * MIB, lambda: f"no measurements:\n{command}")
    demand("python3" in command.err and not plot.exists(), lambda: f"{command}")
    machine.expect_nothing_left()


def failures(machine):
    """A driver that fails in some round: the error is reported, and nothing is left."""
    for rule in ("cuCheckpointProcessCheckpoint:2=fail", "cuCheckpointProcessLock:3=fail",
                 "cuMemcpyDtoHAsync_v2:1=fail"):
        machine.world.gpu_fault(rule)
        command = machine.bench(expect=None)
        machine.world.gpu_fault("")
        demand(command.code != 0 and "shared path" in command.err, lambda: f"{rule}:\n{command}")
        machine.expect_nothing_left()


def interrupted(machine):
    """Ctrl-C and SIGKILL in the middle of hundreds of rounds."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        command = machine.world.begin(*SMALL, "--allocation", "8MiB", "--rounds", 500)
        wait_until(machine.has_data, 60, "no arena")
        command.process.send_signal(number)
        command.wait()
        if number == signal.SIGKILL:
            demand(command.code == -number, lambda: str(command))
            # After SIGKILL the next commands clean up.
            for name in ("blocks", "stasis-mover", "stasis-device-helper"):
                machine.await_end(name)
            machine.world.stasis("recover")
            machine.world.stasis("arena", "free")
        else:
            demand(command.code == 1 and "cancelled" in command.err, lambda: str(command))
        machine.world.reap()
        machine.expect_nothing_left()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    isolate.enter(isolate_keep(options.build))
    machine = Machine(options.build)
    failed = []
    for case in (whole_run, text, reserved_memory_stays, huge_pages, refusals, plot_without_python, failures,
                 interrupted):
        if options.only not in case.__name__:
            continue
        try:
            case(machine)
            print(f"PASS  {case.__name__}", flush=True)
        except Exception:  # noqa: BLE001 - the other cases are run all the same
            failed.append(case.__name__)
            print(f"FAIL  {case.__name__}\n{traceback.format_exc()}\n{machine.world.transcript(4)}", flush=True)
    if not failed:
        machine.world.close()
    return 1 if failed else 0


sys.exit(main())
