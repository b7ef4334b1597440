"""criu_test.py --build DIR: plain CRIU with our plugin: dump, restore, and what can go wrong between."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))

import cases  # noqa: E402
import processes  # noqa: E402
from plugin import Plugin  # noqa: E402
from processes import wait_until  # noqa: E402
from world import demand  # noqa: E402


def run_case(world, test, *args):
    """Runs a case with its own plugin folder and image folders."""
    plugin = Plugin(world)
    try:
        test(world, plugin, *args)
    finally:
        if world.named("stasisd"):
            plugin.end_daemon()
        for folder in [plugin.folder, *world.folder.glob("criu-image-*")]:
            shutil.rmtree(folder)


def finish(plugin, program):
    """Checks that the program has all of its memory, and ends it."""
    plugin.await_idle()
    program.expect_running()
    program.finish()


def there_and_back(_world, plugin, workload, agent):
    plugin.start_daemon()
    program = plugin.spawn(workload, workload, "--memory", "24M", "--interval", "10", agent=agent == "agent")
    program.expect_running()
    folder = plugin.dump(program)
    demand((folder / "stasis" / "manifest.pb").exists(), "the image has no GPU data")
    plugin.await_idle()
    plugin.restore(program, folder)
    program.expect_running()
    plugin.await_idle()
    folder = plugin.dump(program, "-R")
    program.expect_running()
    # Dump into the same folder, as a container runtime does.
    folder = plugin.dump(program, folder=folder)
    plugin.restore(program, folder)
    finish(plugin, program)


def without_gpu(world, plugin, daemon):
    if daemon == "daemon":
        plugin.start_daemon()
    child = subprocess.Popen(["sleep", "1000"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL, start_new_session=True)
    world.own(child.pid)
    folder = plugin.image_folder()
    plugin.criu_run("dump", folder, "-t", child.pid)
    child.wait()
    demand(not (folder / "stasis").exists(), "GPU data of a program without a GPU")
    for loaded in (False, True):
        plugin.criu_run("restore", folder, "-d", plugin=loaded)
        os.kill(child.pid, signal.SIGKILL)
        wait_until(lambda: world.disown(child.pid) or world.reap() or not processes.stat(child.pid), 30, "it does not end")


def no_daemon(_world, plugin):
    program = plugin.spawn("alone")
    folder = plugin.dump(program, code=1)
    demand("stasisd does not answer" in plugin.log_of("dump", folder), lambda: plugin.log_of("dump", folder))
    program.expect_running()
    program.finish()


def needs_plugin(_world, plugin):
    """CRIU itself refuses a restore without the plugin."""
    plugin.start_daemon()
    program = plugin.spawn("vector")
    folder = plugin.dump(program)
    plugin.restore(program, folder, code=1, plugin=False)
    demand("stasis_plugin" in plugin.log_of("restore", folder), lambda: plugin.log_of("restore", folder))
    plugin.restore(program, folder)
    finish(plugin, program)


def script_refuses(world, plugin, *words):
    """Another action script refuses the dump after the commit."""
    plugin.start_daemon()
    program = plugin.spawn("refused")
    script = world.folder / "tmp" / "refuse"
    script.write_text('#!/bin/sh\n[ "$CRTOOLS_SCRIPT_ACTION" != post-dump ]\n')
    script.chmod(0o755)
    plugin.dump(program, "--action-script", script, *words, code=1)
    script.unlink()
    plugin.await_idle()
    program.expect_running()
    folder = plugin.dump(program)
    plugin.restore(program, folder)
    finish(plugin, program)


def held(world, plugin, phase, begin):
    """Runs `begin` with a daemon whose worker stops before a phase. Returns the command, and the file whose removal
    lets the worker continue."""
    hold = world.folder / "tmp" / "hold"
    hold.write_text("")
    plugin.start_daemon({"STASIS_FAULT": f"{phase}:before:hold={hold}"})
    command = begin()
    world.await_phase(phase)
    return command, hold


def killed(world, plugin, victim, phase, *words):
    """CRIU, or the daemon's worker, is killed in a phase of a dump. The program continues, or has ended with a good
    image."""
    program = plugin.spawn("vector")
    folder = plugin.image_folder()
    command, hold = held(world, plugin, phase, lambda: plugin.begin("dump", folder, "-t", program.pid, *words))
    victims = {"criu": [command.pid], "worker": world.named("stasis-worker"), "daemon": world.named("stasisd")}[victim]
    for pid in victims:
        with contextlib.suppress(ProcessLookupError):  # a worker of a short call that has ended
            os.kill(pid, signal.SIGKILL)
    if victim == "criu":
        command.wait()
    hold.unlink()
    command.wait()
    if victim == "daemon":
        demand(command.code == 0, lambda: f"{command}\n{plugin.log_of('dump', folder)}")
        world.await_daemons_end()
        plugin.start_daemon()
        if "-R" not in words:
            program.await_gone()
            plugin.restore(program, folder)
        finish(plugin, program)
        return
    plugin.await_idle()
    program.expect_running()
    plugin.end_daemon()
    plugin.start_daemon()
    folder = plugin.dump(program)
    plugin.restore(program, folder)
    finish(plugin, program)


def suspended(world, plugin):
    """A program that was suspended before the dump stays suspended."""
    plugin.start_daemon()
    program = plugin.spawn("vector")
    program.expect_running()
    world.stasis("suspend", program.pid)
    plugin.dump(program, "-R")
    plugin.await_idle()
    demand(program.gpu_state() == "checkpointed", lambda: program.gpu_state())
    folder = plugin.dump(program)
    plugin.restore(program, folder)
    finish(plugin, program)


def cannot_restore(world, plugin, what):
    """A restore that fails leaves nothing, and the image is good."""
    plugin.start_daemon()
    program = plugin.spawn("vector")
    folder = plugin.dump(program)
    plugin.await_idle()
    data, kept = folder / "stasis", world.folder / "tmp" / "kept"
    shutil.copytree(data, kept)
    if what == "missing":
        shutil.rmtree(data)
    elif what == "changed":
        pack = next((data / "packs").rglob("*-*")) if any((data / "packs").rglob("*-*")) else next(p for p in (data / "packs").rglob("*") if p.is_file())
        bytes_ = bytearray(pack.read_bytes())
        bytes_[len(bytes_) // 3] ^= 1
        pack.write_bytes(bytes_)
    elif what == "full":
        other = plugin.spawn("other", "vector", "--memory", "1000M", "--interval", "10")
    plugin.restore(program, folder, code=1)
    demand("stasis: " in plugin.log_of("restore", folder), lambda: f"no reason:\n{plugin.log_of('restore', folder)}")
    demand(not processes.is_alive(program.pid), "the program lives")
    plugin.await_idle()
    world.expect_clean()
    if what == "full":
        other.kill()
    shutil.rmtree(data, ignore_errors=True)
    shutil.copytree(kept, data)
    shutil.rmtree(kept)
    plugin.restore(program, folder)
    finish(plugin, program)


def mixed(world, plugin):
    """Two dumps of one program, each with the GPU data of the other, are refused before CRIU makes a process."""
    plugin.start_daemon()
    program = plugin.spawn("vector")
    first = plugin.dump(program, "-R")
    program.expect_running()
    second = plugin.dump(program)
    plugin.await_idle()

    def swap():
        aside = world.folder / "tmp" / "aside"
        for source, to in ((first / "stasis", aside), (second / "stasis", first / "stasis"), (aside, second / "stasis")):
            source.rename(to)

    swap()
    for folder in (first, second):
        plugin.restore(program, folder, code=1)
        demand("are from different dumps" in plugin.log_of("restore", folder), lambda: plugin.log_of("restore", folder))
        demand(not processes.is_alive(program.pid), "the program lives")
    swap()
    plugin.restore(program, second)
    finish(plugin, program)


def hostile(world, plugin):
    """GPU data that has been changed, with correct checksums, is refused before root's daemon acts on it."""
    def forge(*words):
        subprocess.run([world.build / "tests" / "security_forge", data, *map(str, words)], check=True)

    def replace(path, make):
        path.rename(world.folder / "tmp" / "aside")
        make(path)

    plugin.start_daemon()
    program, other = plugin.spawn("vector"), plugin.spawn("other")
    folder = plugin.dump(program)
    plugin.await_idle()
    world.stasis("suspend", other.pid)
    data, kept, away = folder / "stasis", world.folder / "tmp" / "kept", world.folder / "tmp" / "aside"
    shutil.copytree(data, kept)
    for text, change in [
            ("is a symbolic link, not a folder", lambda: replace(data, lambda path: path.symlink_to(away))),
            ("is a symbolic link, not a regular file",
             lambda: replace(data / "manifest.pb", lambda path: path.symlink_to(away))),
            ("is a FIFO, not a regular file", lambda: replace(data / "manifest.pb", os.mkfifo)),
            (f"the restored program has no process {other.pid}", lambda: forge("--pid", other.pid)),
            ("MiB free, and the program needs", lambda: forge("--zeros", 1 << 40)),
            ("must not contain CPU memory", lambda: forge("--pages", 1 << 40)),
            ("which is missing", lambda: forge("--needs", "/no/such/file")),
            ("is not a regular file", lambda: forge("--needs", "/dev/null"))]:
        change()
        plugin.restore(program, folder, code=1)
        demand(text in plugin.log_of("restore", folder), lambda: f"not '{text}':\n{plugin.log_of('restore', folder)}")
        demand(not processes.is_alive(program.pid), "the program lives")
        demand(other.gpu_state() == "checkpointed", lambda: other.gpu_state())
        plugin.await_idle()
        for path in (data, away):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
        shutil.copytree(kept, data)
    shutil.rmtree(kept)
    world.stasis("resume", other.pid)
    other.finish()
    # A dump into a folder that came from elsewhere removes a link, not its target.
    plugin.restore(program, folder)
    data.rename(away)
    data.symlink_to(away)
    plugin.dump(program, folder=folder)
    demand((away / "manifest.pb").exists() and not data.is_symlink(), "the dump has followed a link")
    shutil.rmtree(away)
    plugin.restore(program, folder)
    finish(plugin, program)


def killed_in_restore(world, plugin, victim, phase):
    """Nothing of the program is left, and the image is good."""
    plugin.start_daemon()
    program = plugin.spawn("vector")
    folder = plugin.dump(program)
    plugin.await_idle()
    plugin.end_daemon()
    program.child = None
    size = program.files[0].stat().st_size
    command, hold = held(world, plugin, phase, lambda: plugin.begin("restore", folder, "-d"))
    for pid in [command.pid] if victim == "criu" else world.named("stasis-worker"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if victim == "criu":
        command.wait()
    hold.unlink()
    command.wait()
    demand(command.code != 0, f"it succeeded: {command}")
    wait_until(lambda: world.reap() or not processes.is_alive(program.pid), 30,
               lambda: f"left: {processes.describe(program.pid)}\n{plugin.log_of('restore', folder)}")
    plugin.await_idle()
    world.expect_clean()
    plugin.end_daemon()
    plugin.start_daemon()
    # After CRIU was killed, the program could write for a moment. Undo that.
    os.truncate(program.files[0], size)
    plugin.restore(program, folder)
    finish(plugin, program)


CASES = [(run_case, *case) for case in (
    (there_and_back, "vector", "agent"),
    (there_and_back, "vector", "driver"),
    (there_and_back, "tree", "agent"),
    (without_gpu, "daemon"),
    (without_gpu, "no daemon"),
    (no_daemon,),
    (needs_plugin,),
    (script_refuses,),
    (script_refuses, "-R"),
    (suspended,),
    (killed, "criu", "data-save"),
    (killed, "criu", "commit"),
    (killed, "criu", "gpu-return", "-R"),
    (killed, "criu", "commit", "-R"),
    (killed, "worker", "data-save"),
    (killed, "worker", "commit"),
    (killed, "worker", "gpu-return", "-R"),
    (killed, "worker", "commit", "-R"),
    (killed, "daemon", "data-save"),
    (killed, "daemon", "commit"),
    (killed, "daemon", "gpu-return", "-R"),
    (killed, "daemon", "commit", "-R"),
    (cannot_restore, "missing"),
    (cannot_restore, "changed"),
    (cannot_restore, "full"),
    (mixed,),
    (hostile,),
    (killed_in_restore, "criu", "load-room"),
    (killed_in_restore, "criu", "data-read"),
    (killed_in_restore, "criu", "gpu-restore"),
    (killed_in_restore, "worker", "load-room"),
    (killed_in_restore, "worker", "data-read"),
    (killed_in_restore, "worker", "gpu-restore"),
)]

sys.exit(cases.main(CASES))
