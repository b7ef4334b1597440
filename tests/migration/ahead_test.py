#!/usr/bin/env python3
"""The target loads GPU memory ahead, and its resident mover registers it before the program is stopped."""

import os
import signal
import subprocess
import sys

from hosts import await_journal, clear, end, expect_no_rest, expect_only, run_test, settle, start
import processes
from processes import wait_until
from world import demand

REGISTER = "cuMemHostRegister_v2:1="
LAUNCH_FAILED = 719
NOT_SUPPORTED = 801


def registered(a, b):
    """The restore registers nothing; without a resident mover it does."""
    start(a, memory="64M")
    b.set_receiver(STASIS_HELPER_IDLE_S="60")
    result = a("migrate", "job", "b", "--json").json()
    demand(result["migration"]["restore_cold_bytes"] == 0, f"{result['migration']}")
    demand(not any("did not register" in note for note in result["notes"]), f"{result['notes']}")
    expect_only(b, a)
    a("delete", "job")
    result = b("migrate", "job", "a", "--json").json()
    demand(result["migration"]["restore_cold_bytes"] > 32 << 20, f"{result['migration']}")
    expect_only(a, b)
    expect_no_rest(a, b)
    end(a, b)


def registration_fails(world, a, b):
    """The account has a note, and the restore registers, also if the driver only stages copies."""
    for error, texts in ((LAUNCH_FAILED, ("did not register", "cuMemHostRegister")),
                         (NOT_SUPPORTED, ("the driver does not register", "staging buffers"))):
        registration_fails_by(world, a, b, error, texts)


def registration_fails_by(world, a, b, error, texts):
    start(a, memory="64M")
    b("arena", "free")
    fault, hold = b.gpu / "fault", world.folder / "hold"
    fault.write_text(f"{REGISTER}fail({error})")
    hold.touch()
    moving = a.begin("migrate", "job", "b", "--rounds", "1", "--json", env={"STASIS_FAULT": f"hand-over:before:hold={hold}"})
    await_journal(a, '"phase":"hand-over"')
    fault.write_text("")
    hold.unlink()
    done = moving.wait()
    demand(done.code == 0, f"{done}")
    result = done.json()
    notes = [note for note in result["notes"] if note.startswith("on b: ") and texts[0] in note]
    demand(len(notes) == 1 and texts[1] in notes[0], f"{result['notes']}")
    demand(result["migration"]["restore_cold_bytes"] > 32 << 20, f"{result['migration']}")
    expect_only(b, a)
    end(a, b)


def mover_is_busy(world, a, b):
    """The resident mover serves another command on the target, so nothing stays registered: the account has a note."""
    start(b, name="other")
    start(a, memory="64M")
    b("arena", "free")
    hold = world.folder / "hold"
    hold.touch()
    suspending = b.begin("suspend", "other", "--timeout", "300",
                         env={"STASIS_HELPER_IDLE_S": "60", "STASIS_FAULT": f"data-release:before:hold={hold}"})
    await_journal(b, '"phase":"data-release"')
    result = a("migrate", "job", "b", "--rounds", "1", "--json").json()
    hold.unlink()
    demand(suspending.wait().code == 0, f"{suspending}")
    notes = [note for note in result["notes"] if note.startswith("on b: the resident mover of GPU")]
    demand(len(notes) == 1 and "was busy" in notes[0], f"{result['notes']}")
    demand(result["migration"]["restore_cold_bytes"] > 32 << 20, f"{result['migration']}")
    expect_only(b, a)
    b("resume", "other")
    end(b, name="other")
    end(a, b)


def begin_to_register(a, b, *options):
    """Begins a migration whose target waits in its first registration until hold.1 in b.gpu is removed."""
    b("arena", "free")  # ends the resident mover, which may have registered reused memory already
    (b.gpu / "held.1").unlink(missing_ok=True)
    (b.gpu / "hold.1").touch()
    (b.gpu / "fault").write_text(f"{REGISTER}hold(1)")
    moving = a.begin("migrate", "job", "b", *options)
    wait_until((b.gpu / "held.1").exists, 60, lambda: f"nothing is registered: {moving}")
    return moving


def memory_is_short(world, a, b):
    """The target has too little memory for the CPU memory after the load: refused while the program runs."""
    meminfo = world.folder / "meminfo"
    meminfo.write_text("MemAvailable: 1024 kB\n")
    start(a, memory="96M")  # needs two rounds
    for options in ([], ["--ignore-memory"]):
        moving = begin_to_register(a, b, *options)
        subprocess.run([*b.enter, "mount", "--bind", meminfo, "/proc/meminfo"], check=True)
        (b.gpu / "fault").write_text("")
        (b.gpu / "hold.1").unlink()
        done = moving.wait()
        subprocess.run([*b.enter, "umount", "/proc/meminfo"], check=True)
        if options:
            demand(done.code == 0, f"{done}")
            expect_only(b, a)
        else:
            demand(done.code in (1, 5) and "b cannot load the program's memory: for the CPU memory" in done.err, f"{done}")
            expect_only(a, b)
        expect_no_rest(a, b)
    end(a, b)


def memory_is_short_before_the_load(world, a, b):
    """The GPU memory and the CPU memory fit, but not both: refused before anything is loaded."""
    start(a, memory="96M")
    b("arena", "free")
    dumped = a("dump", "job", "--leave-running", "--name", "size", "--json").json()
    a("image", "delete", "size")
    gpu = dumped["shared_bytes"]
    cpu = dumped["image_bytes"] - gpu
    demand(gpu > 64 << 20 and cpu > 2 << 20, f"{dumped}")
    meminfo = world.folder / "meminfo"
    meminfo.write_text(f"MemAvailable: {(gpu + cpu // 2) >> 10} kB\n")
    subprocess.run([*b.enter, "mount", "--bind", meminfo, "/proc/meminfo"], check=True)
    done = a("migrate", "job", "b", expect=None)
    subprocess.run([*b.enter, "umount", "/proc/meminfo"], check=True)
    demand(done.code in (1, 5) and "b cannot load the program's memory: for the CPU memory and the GPU memory" in done.err,
           f"{done}")
    demand(not b("arena", "ls", "--json").json()["arenas"], f"b has loaded it: {b('arena', 'ls').out}")
    expect_only(a, b)
    expect_no_rest(a, b)
    end(a, b)


def source_is_lost(world, a, b):
    """The source is lost while the target waits for its mover: the target ends at once, with the mover."""
    for how in (signal.SIGKILL, signal.SIGINT):
        start(a)
        moving = begin_to_register(a, b)
        os.kill(processes.children(moving.pid)[0], how)
        wait_until(lambda: not b.receivers(), 30, "b goes on loading")
        (b.gpu / "fault").write_text("")
        (b.gpu / "hold.1").unlink()
        done = moving.wait()
        demand(done.code == (-9 if how == signal.SIGKILL else 1), f"{done}")
        settle(a, b)
        expect_only(a, b)
        clear(a, b)


def run(world, a, b):
    registered(a, b)
    registration_fails(world, a, b)
    mover_is_busy(world, a, b)
    memory_is_short_before_the_load(world, a, b)
    memory_is_short(world, a, b)
    source_is_lost(world, a, b)


if __name__ == "__main__":
    sys.exit(run_test(run))
