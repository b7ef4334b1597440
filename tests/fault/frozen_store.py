"""frozen_store.py --build DIR frozen: the store stops answering, before and during a dump.

The store is a file system in a file. It is frozen, so that writers block in the kernel, where not
even SIGKILL ends them. The program must run again at the deadline, while the store is still frozen.
"""

import contextlib
import fcntl
import os
import subprocess
import sys

from stand import IMAGE, Failed, Stand, demand, main, processes, wait_until
from file_systems import file_system

FIFREEZE, FITHAW = 0xC0045877, 0xC0045878  # linux/fs.h
TIMEOUT_S = 8
ENDS_S = 90
HIDDEN = f".{IMAGE}.partial-"


@contextlib.contextmanager
def disk_store(stand):
    """Creates an empty store on a separate file system."""
    with file_system(stand.world, stand.world.folder / "store-disk", 512 << 20) as store:
        stand.store = store
        try:
            yield store
        finally:
            stand.store = None


@contextlib.contextmanager
def frozen(store):
    fd = os.open(store, os.O_RDONLY)
    fcntl.ioctl(fd, FIFREEZE, 0)
    try:
        yield
    finally:
        fcntl.ioctl(fd, FITHAW, 0)
        os.close(fd)


def ended(command):
    """Waits for the command. If it does not end, raises Failed so that the store is thawed. A SIGKILL would not end
    blocked processes."""
    try:
        command.code = command.process.wait(ENDS_S)
    except subprocess.TimeoutExpired:
        raise Failed(f"it did not end in {ENDS_S} s: {command}") from None
    return command


def expect_released(stand, store, command):
    """Checks the failed command and the program while the store is frozen."""
    demand(command.code == 1, f"exit code {command.code}:\n{command}")
    demand(str(store) in command.err, f"it does not name the store:\n{command}")
    demand(stand.program.gpu_state() == "running", "its GPU is not given back")
    stand.program.expect_running()


def before(stand):
    stand.prepare("running")
    with disk_store(stand) as store:
        with frozen(store):
            command = ended(stand.begin("dump", "--timeout", "2"))
            expect_released(stand, store, command)
            demand("in time" in command.err and "use another folder with -d" in command.err, f"it does not say why:\n{command}")
        stand.world.expect_clean()
        demand(not os.listdir(store), f"left in the store: {os.listdir(store)}")


def in_the_middle(stand, held, awaited, options):
    """Holds phase `held` until the store is frozen, which happens when `awaited` has begun."""
    stand.prepare("running")
    with disk_store(stand) as store:
        hold = stand.world.folder / "hold"
        hold.touch()
        operation = stand.begin("dump", *options, "--timeout", TIMEOUT_S,
                                env={"STASIS_FAULT": f"{held}:before:hold={hold}"})
        stand.world.await_phase(awaited)
        with frozen(store):
            hold.unlink()
            command = ended(operation)
            expect_released(stand, store, command)
            demand("does not answer" in command.err, f"it does not say why:\n{command}")
            demand(HIDDEN in command.err and "may be left" in command.err, f"the message does not name the leftovers:\n{command}")
        remove_what_is_left(stand, store)
        demand(not stand.image_exists(), "there is an image")
        stand.operate("dump", "--leave-running")
        demand(stand.world.last.code == 0, f"the store cannot be used:\n{stand.world.last}")
        stand.drop_image()


def through_files(stand, phase):
    """GPU data goes through files in the store, which stops answering before the phase."""
    stand.end_program()
    stand.memory = "72M"
    stand.prepare("running")
    with disk_store(stand) as store:
        hold = stand.world.folder / "hold"
        hold.touch()
        operation = stand.begin("dump", "--arena-limit", "64M", "--timeout", TIMEOUT_S,
                                env={"STASIS_FAULT": f"{phase}:before:hold={hold}"})
        stand.world.await_phase(phase)
        with frozen(store):
            hold.unlink()
            command = ended(operation)
            demand(command.code == 1 and phase in command.err, f"exit code {command.code}:\n{command}")
            demand(stand.program.gpu_state() == "running", "its GPU is not given back")
            stand.program.expect_running()
        wait_until(lambda: stand.world.reap() or not processes.called("stasis-mover"), 60, "a mover still hangs")
        stand.operate("dump", "--leave-running", "--arena-limit", "64M")
        demand(stand.world.last.code == 0, f"the store cannot be used:\n{stand.world.last}")
        stand.drop_image()
        # The file that could not be removed was used again, and removed then.
        remove_what_is_left(stand, store)
    stand.end_program()
    stand.memory = "16M"


def remove_what_is_left(stand, store):
    """When the store answers again, blocked processes end and their leftovers can be removed."""
    wait_until(lambda: stand.world.reap() or not processes.called("stasis"), 60, "a process of stasis still hangs")
    stand.world.stasis("image", "gc", "-d", store)
    stand.world.expect_clean()


def behind_the_commit(stand):
    """The image is complete: leftovers that cannot be removed give a note, not a failure."""
    stand.prepare("running")
    with disk_store(stand) as store:
        hold = stand.world.folder / "hold"
        hold.touch()
        operation = stand.begin("dump", "--leave-running", env={"STASIS_FAULT": f"tidy:before:hold={hold}"})
        stand.world.await_phase("tidy")
        with frozen(store):
            hold.unlink()
            command = ended(operation)
            demand(command.code == 0, f"exit code {command.code}:\n{command}")
            said = command.out + command.err
            demand(HIDDEN in said and "could not be removed" in said, f"the message does not name the leftovers:\n{command}")
            stand.program.expect_running()
        remove_what_is_left(stand, store)
        stand.world.stasis("image", "verify", stand.image_folder())
        stand.drop_image()


def recovery(stand):
    """After a killed dump, the program has its GPU again before the store is accessed."""
    stand.prepare("running")
    with disk_store(stand) as store:
        hold = stand.world.folder / "hold"
        hold.touch()
        operation = stand.begin("dump", env={"STASIS_FAULT": f"commit:before:hold={hold}"})
        stand.world.await_phase("commit")
        operation.process.kill()
        operation.process.wait()
        hold.unlink()
        with frozen(store):
            command = ended(stand.world.begin("recover"))
            demand(command.code == 0, f"exit code {command.code}:\n{command}")
            demand("the program is as it was before" in command.out, f"the message does not give the state:\n{command}")
            demand(HIDDEN in command.out and "may be left" in command.out, f"the message does not name the leftovers:\n{command}")
            demand(stand.program.gpu_state() == "running", "its GPU is not given back")
            stand.program.expect_running()
        remove_what_is_left(stand, store)
        demand(not stand.image_exists(), "there is an image")


def run(stand: Stand, _):
    stand.case("before a dump", before)
    stand.case("at data-write", in_the_middle, "data-write", "describe", [])
    for phase in ("cpu-write", "commit"):
        stand.case(f"at {phase}", in_the_middle, phase, phase, [])
    stand.case("at commit, of a program that runs on", in_the_middle, "commit", "commit", ["--leave-running"])
    for phase in ("data-export", "data-save"):
        stand.case(f"at {phase}, through files", through_files, phase)
    stand.case("behind the commit", behind_the_commit)
    stand.case("while a killed dump is recovered", recovery)


if __name__ == "__main__":
    sys.exit(main(["frozen"], run))
