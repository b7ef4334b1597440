"""overlap_test.py --build DIR: in a restore, the driver restores its state while the GPU data is still loaded. CRIU holds
the program meanwhile: only the driver's threads run. Checks that, and damage, failures and kills in that time. Uses the
real programs."""

import os
import pathlib
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))

import one_world  # noqa: E402
import processes  # noqa: E402
from processes import wait_until  # noqa: E402
from programs import Program  # noqa: E402
from world import demand  # noqa: E402

MIB = 1 << 20
DRIVER = "softgpu-restore"
APART = "--new-pidns"


def threads(pid):
    """Returns (name, state) of each thread."""
    try:
        ids = os.listdir(f"/proc/{pid}/task")
    except FileNotFoundError:
        return []
    found = [processes.stat(f"{pid}/task/{tid}") for tid in ids]
    return [(thread[0], thread[1]) for thread in found if thread]


def users():
    """Returns the processes that use the driver, without those of Stasis."""
    return [p for p in processes.all_pids() if any(name == DRIVER for name, _ in threads(p))
            and not processes.stat(p)[0].startswith("stasis")]


class Held:
    """A restore whose GPU data is not loaded yet, or loaded and not reported, and whose driver has restored."""

    def __init__(self, world, program, image, *options, moment="before", job=None, more=""):
        self.world, self.program = world, program
        self.before = program.output()
        self.gate = world.folder / "hold"
        self.gate.touch()
        env = {"STASIS_FAULT": f"data-load:{moment}:hold={self.gate}{more}"}
        self.command = world.begin("restore", image, "--job", job or program.name, "--json", *options, env=env)
        wait_until(self._driver_has_restored, 60, lambda: f"gpu-restore does not end: {self.command}")
        self.pids = users()

    def _driver_has_restored(self):
        demand(self.command.process.poll() is None, lambda: f"it has ended: {self.command.wait()}")
        text = "".join(processes.text_of(p) for p in self.world.journal.glob("*.journal"))
        return '{"at":"end","phase":"gpu-restore"}' in "".join(text.split())

    def expect_only_the_driver_runs(self, count):
        demand(len(self.pids) == count, f"{self.pids} are restored, not {count} processes")
        for pid in self.pids:
            found = threads(pid)
            others = [state for name, state in found if name != DRIVER]
            demand(others and set(others) == {"t"}, f"threads of the program run: {found}")
            demand(all(state in "SR" for name, state in found if name == DRIVER), f"the driver's thread is stopped: {found}")
        demand(self.program.output() == self.before, "the program has run")

    def release(self):
        self.gate.unlink()

    def expect_nothing_left(self, code, ran=False):
        """The restore has failed with this exit code, and no process of the program has run, unless `ran`."""
        self.command.wait()
        demand(self.command.code == code, lambda: f"exit code {self.command.code}, not {code}: {self.command}")
        self.world.stasis("recover")
        gone = lambda: self.world.reap() or not any(processes.is_alive(p) for p in self.pids)  # noqa: E731
        wait_until(gone, 30, lambda: f"left: {[processes.describe(p) for p in self.pids]}")
        demand(ran or self.program.output() == self.before, "the program has run")
        demand(self.program.state() == "dumped", lambda: f"the program is {self.program.state()}")
        self.world.expect_clean()


def restored(world, program, image, *options, count=1, moment="before", env=None):
    held = Held(world, program, image, *options, moment=moment)
    held.expect_only_the_driver_runs(count)
    held.release()
    account = held.command.wait().json()
    demand(held.command.code == 0, held.command)
    end = {p["name"]: p["start_s"] + p["seconds"] for p in account["phases"]}
    demand(end["gpu-restore"] < end["data-load"], f"phases end at {end}")
    program.find_pid()
    program.expect_running()


def refused(held, code, *words):
    held.expect_nothing_left(code)
    for word in words:
        demand(word in held.command.err, lambda: f"it does not say {word}: {held.command}")


def damage_is_found(world, program, image):
    packs = world.stasis("image", "inspect", image, "--json").json()["packs"]
    path = world.images / image / max((p["size_bytes"], p["path"]) for p in packs if p["unit_bytes"] == 2 * MIB)[1]
    held = Held(world, program, image)
    held.expect_only_the_driver_runs(1)
    with open(path, "r+b", buffering=0) as file:
        byte = os.pread(file.fileno(), 1, 70000)[0]
        os.pwrite(file.fileno(), bytes([byte ^ 16]), 70000)
        held.release()
        refused(held, 1, "data-load", "is damaged")
        os.pwrite(file.fileno(), bytes([byte]), 70000)


def victims(world, held):
    """Returns the processes that a restore consists of."""
    found = {"stasis": held.command.pid}
    for name in ("criu", "stasis-mover"):
        pids = processes.called(name)
        demand(len(pids) == 1, f"{pids} are called {name}")
        found[name] = pids[0]
    # The parent of CRIU, or of the process that started it.
    found["stasis-shim"] = processes.stat(found["criu"])[2]
    demand(processes.stat(found["stasis-shim"])[0] == "stasis-shim", "CRIU is not a child of the shim")
    found["program"] = held.pids[0]
    return found


def kills_leave_nothing(world, program, image):
    for options in ((), (APART,)):
        for name in ("criu", "stasis", "stasis-mover", "stasis-shim", "program"):
            held = Held(world, program, image, *options)
            os.kill(victims(world, held)[name], signal.SIGKILL)
            if name in ("criu", "stasis", "program"):
                # Nothing waits for the load: the kernel kills the program with CRIU, and CRIU's plugin without Stasis.
                wait_until(lambda: not any(processes.is_alive(p) for p in held.pids), 30, f"{name} was killed")
            held.release()
            # Without the shim the program runs with all of its data, until the restore notices.
            held.expect_nothing_left(-9 if name == "stasis" else 1, ran=name == "stasis-shim")


def the_plugin_ends_it(world, program, image):
    """Without Stasis, CRIU's plugin kills all processes before CRIU lets them run. The shim would kill them later."""
    held = Held(world, program, image)
    shim = victims(world, held)["stasis-shim"]
    os.kill(shim, signal.SIGSTOP)
    held.command.process.kill()
    wait_until(lambda: not any(processes.is_alive(p) for p in held.pids), 30, "the program is not killed")
    os.kill(shim, signal.SIGCONT)
    held.release()
    held.expect_nothing_left(-9)


def the_first_process_is_killed(world, program, image):
    """Of a pid namespace: it cannot end before CRIU, which traces them, has waited for all threads of the namespace."""
    held = Held(world, program, image)
    os.kill(held.pids[0], signal.SIGKILL)
    held.release()
    held.expect_nothing_left(1)


def failures_leave_nothing(world, program, image):
    refused(Held(world, program, image, "--timeout", "5"), 1)  # the load is late
    for moment in ("before", "after"):
        held = Held(world, program, image, moment=moment, more=",data-load:after:fail")
        held.release()
        refused(held, 1, "data-load")


def is_not_stopped(world, program, image):
    """SIGSTOP, which cannot be blocked and may be followed by SIGCONT, does not stop the driver's thread for ever."""
    gate = world.folder / "hold"
    gate.touch()
    command = world.begin("restore", image, "--job", program.name, "--json",
                          env={"STASIS_FAULT": f"gpu-restore:before:hold={gate}"})
    world.await_phase("gpu-restore")
    for pid in users():
        os.kill(pid, signal.SIGSTOP)
        os.kill(pid, signal.SIGCONT)
    gate.unlink()
    demand(command.wait(60).code == 0, command)
    program.find_pid()
    program.expect_running()


def restored_one_after_another(world, program, image):
    """The driver restores when all data is loaded: several processes have data on a GPU, or TCP connections are kept."""
    phases = world.stasis("restore", image, "--job", program.name, "--json").json()["phases"]
    times = {p["name"]: (p["start_s"], p["start_s"] + p["seconds"]) for p in phases}
    demand(times["gpu-restore"][0] >= times["data-load"][1], f"phases: {times}")
    program.find_pid()
    program.expect_running()


def run(world):
    program = Program(world, "one", world.build / "tests" / "image_drift",
                      ["--memory", 64 * MIB, "--allocation", 16 * MIB, "--interval", 5, "--port", 1]).run()
    program.dump(name="one")
    restored(world, program, "one")
    program.dump(name="again")
    restored(world, program, "again", APART, moment="after")
    program.dump(name="inner")  # has a pid namespace of its own
    the_first_process_is_killed(world, program, "inner")
    restored(world, program, "inner")
    program.dump(name="last")
    damage_is_found(world, program, "last")
    failures_leave_nothing(world, program, "last")
    kills_leave_nothing(world, program, "last")
    the_plugin_ends_it(world, program, "last")
    is_not_stopped(world, program, "last")
    program.dump("--tcp", "keep", name="kept")
    restored_one_after_another(world, program, "kept")
    program.finish()

    family = Program(world, "family", "ring", ["--children", 3, "--memory", "4M", "--interval", 20]).run()
    members = len(users())
    demand(members > 1, f"{members} processes of the tree use the GPU")
    family.dump(name="family")
    restored_one_after_another(world, family, "family")
    family.finish()
    names = [image["name"] for image in world.stasis("image", "ls", "--json").json()["images"]]
    world.stasis("image", "delete", *names)


if __name__ == "__main__":
    sys.exit(one_world.main(run))
