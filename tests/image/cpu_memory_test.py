"""cpu_memory_test.py --build DIR: `dump --leave-running` receives CPU memory in memory while the program is stopped,
and stores it when the program runs again. Checks the image, kills in between, and the way without enough memory."""

import pathlib
import stat
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))

import isolate  # noqa: E402
import one_world  # noqa: E402
from control_groups import Group  # noqa: E402
from processes import wait_until  # noqa: E402
from programs import Program  # noqa: E402
from world import demand  # noqa: E402

MIB = 1 << 20
MEMORY = 64 * MIB


def phase(account, name):
    return next(p for p in account["phases"] if p["name"] == name)


def restored(program, image):
    program.kill()
    program.restore(image)
    program.expect_running()


def pages(world):
    """Returns CRIU's files of CPU memory in unfinished images, with their kinds."""
    return [(p.name, p.lstat()) for p in world.images.glob(".*.partial-*/criu/pages-*.img")]


def in_memory(world, program):
    """Everything is in memory when the program runs again, and nothing of it on the disk."""
    hold = world.folder / "hold"
    hold.write_text("x")
    command = world.begin("dump", "one", "--name", "one", "--leave-running", "--json",
                          env={"STASIS_FAULT": f"cpu-write:before:hold={hold}"})
    wait_until(lambda: world.has_begun("cpu-write") or command.process.poll() is not None, 60, "no cpu-write")
    program.expect_running()
    found = pages(world)
    demand(found and all(stat.S_ISLNK(s.st_mode) for _, s in found), f"CRIU wrote to the disk: {found}")
    shared = pathlib.Path(f"/proc/{command.pid}/status").read_text().split("RssShmem:")[1].split()[0]
    demand(int(shared) * 1024 >= MEMORY, f"the command has only {shared} KiB")
    hold.unlink()
    done = command.wait()
    demand(done.code == 0, f"{done}")
    account = done.json()
    demand(phase(account, "cpu-dump")["bytes"] >= MEMORY, f"{account}")
    demand(account["stored"]["cpu_bytes"] >= MEMORY, f"{account}")
    demand(not account["notes"], f"{account['notes']}")
    world.expect_clean()
    world.stasis("image", "verify", "one")
    restored(program, "one")


def killed(world, program):
    """The memory ends with the command; recovery removes the rest."""
    for when in ("cpu-room:after", "criu-start:after", "describe:before", "describe:after", "cpu-write:before", "cpu-write:after"):
        world.stasis("dump", "one", "--name", "dead", "--leave-running", env={"STASIS_FAULT": f"{when}:die"}, expect=-9)
        program.expect_running()
        world.stasis("recover")
        demand("undone" in world.last.out, f"{world.last}")
        world.expect_clean()
        demand(not (world.images / "dead").exists(), "there is an image")


def killed_while_criu_writes(world, program):
    """CRIU gets EPIPE, and lets the program continue."""
    command = world.begin("dump", "one", "--name", "dead", "--leave-running")

    def writes():
        if not world.has_begun("cpu-dump"):
            return command.process.poll() is not None
        # The pipes are open in CRIU when it has inherited them.
        for fds in pathlib.Path("/proc").glob("[0-9]*/fd"):
            try:
                if (fds.parent / "comm").read_text() == "criu\n" and (fds / "30").is_symlink():
                    return True
            except OSError:
                continue
        return command.process.poll() is not None
    wait_until(writes, 60, "CRIU does not begin")
    if command.process.poll() is None:
        command.process.kill()
    done = command.wait()
    program.expect_running()
    world.stasis("recover")
    world.expect_clean()
    if done.code == 0:
        world.stasis("image", "delete", "dead")


def too_little_memory(world, program):
    with Group("memory") as group:
        group.limit_memory(MEMORY + 40 * MIB)  # of the command only
        world.shell(group.command(["stasis", "dump", "one", "--name", "disk", "--leave-running", "--full"]))
        demand("to the image's disk while the program was stopped" in world.last.out + world.last.err
               and "MiB of host memory must be available" in world.last.out + world.last.err, f"{world.last}")
        world.expect_clean()
    program.expect_running()
    world.stasis("image", "verify", "disk")
    restored(program, "disk")


def more_than_expected(world):
    """A file in memory that is not mapped is in no count of the process's memory. The dump is repeated."""
    code = ("import os,time; f = os.memfd_create('x'); d = os.urandom(1 << 20)\n"
            "for _ in range(160): os.write(f, d)\n"
            "print('READY', flush=True)\n"
            "while True: time.sleep(1)")
    log = world.folder / "hidden.log"
    world.stasis("run", "--job", "hidden", "--log", log, "--", "python3", "-c", code)
    wait_until(lambda: log.exists() and "READY" in log.read_text(), 60, "it does not start")
    account = world.stasis("dump", "hidden", "--name", "hidden", "--leave-running", "--json").json()
    demand(any("CPU memory could not be received" in note and "repeated" in note for note in account["notes"]),
           f"{account['notes']}")
    world.expect_clean()
    world.stasis("image", "verify", "hidden")
    world.stasis("kill", "hidden", "-s", "KILL")
    world.stasis("wait", "hidden", expect=None)
    world.stasis("delete", "hidden")


def run(world):
    program = Program(world, "one", world.build / "tests" / "image_heap",
                      ["--memory", MEMORY, "--interval", 20, "--port", 1]).run()
    in_memory(world, program)
    killed(world, program)
    killed_while_criu_writes(world, program)
    more_than_expected(world)
    try:
        too_little_memory(world, program)
    except isolate.Unable as reason:
        print(f"without too_little_memory: {reason}")
    program.finish()


if __name__ == "__main__":
    sys.exit(one_world.main(run))
