"""runc_test.py --build DIR [--all]: runc's checkpoint and restore of GPU containers, with our plugin in CRIU."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))

import cases  # noqa: E402
import isolate  # noqa: E402
import processes  # noqa: E402
import runc  # noqa: E402
from containers import skip_without  # noqa: E402
from processes import wait_until  # noqa: E402
from world import demand  # noqa: E402

VECTOR = ("vector", "--memory", "24M", "--interval", "10")


def with_runc(world, test, *args, stage=None):
    world.set_gpu(2, "1G")
    world.env.pop("SOFTGPU_FIRST", None)
    stage = stage or runc.Runc(world)
    stage.keep_broker()
    stage.plugin.start_daemon()
    try:
        test(world, stage, *args)
    finally:
        for container in stage.containers:
            if container.state()["status"] != "absent":
                stage.runc("delete", "--force", container.name, code=None)
        stage.plugin.end_daemon()
        stage.end_broker()
        for folder in [stage.plugin.folder, stage.root, *world.folder.glob("criu-image-*"), *world.folder.glob("bundle-*")]:
            shutil.rmtree(folder, ignore_errors=True)


def there_and_back(_world, stage, workload, agent, *words):
    container = runc.Container(stage, "c1", workload, *(words or VECTOR[1:]), agent=agent == "agent").run()
    images = stage.plugin.image_folder()
    container.checkpoint(images=images)
    demand((images / "stasis" / "manifest.pb").exists(), "the image has no GPU data")
    stage.plugin.await_idle()
    container.remove()
    container.restore(images)
    container.expect_running()
    container.checkpoint("--leave-running", images=images)
    container.expect_running()
    container.checkpoint(images=images)
    container.remove()
    container.restore(images)
    container.finish()


def ended(stage, name="c1"):
    """Runs a container and ends it by a checkpoint. Returns the container and the image folder."""
    container = runc.Container(stage, name, *VECTOR).run()
    images = stage.plugin.image_folder()
    container.checkpoint(images=images)
    container.remove()
    return container, images


def under_another_id(world, stage):
    first = runc.Container(stage, "first", *VECTOR).run()
    images = stage.plugin.image_folder()
    first.checkpoint("--leave-running", images=images)
    first.expect_running()
    second = runc.Container(stage, "second", *VECTOR)
    second.restore(images)
    second.expect_running()
    first.finish()
    second.finish()


def at_the_same_time(world, stage):
    _, images = ended(stage, "first")
    hold = held(world, stage, "data-load")
    copies = [runc.Container(stage, name, *VECTOR) for name in ("second", "third")]
    commands = [copy.begin_restore(images) for copy in copies]
    wait_until(lambda: len(world.named("stasis-worker")) == 2, 30, "the restores do not begin")
    time.sleep(1)
    hold.unlink()
    for copy, command in zip(copies, commands):
        demand(command.wait(90) == 0, lambda: f"{copy.name}: {copy.criu_log('restore', images)}")
        world.disown(command.pid)
    for copy in copies:
        copy.finish()


def paused(world, stage, *words):
    container = runc.Container(stage, "c1", *VECTOR).run()
    images = stage.plugin.image_folder()
    stage.runc("pause", "c1")
    container.checkpoint(*words, images=images)
    if words:
        demand(container.state()["status"] == "paused", lambda: container.state())
        stage.plugin.await_idle()
        stage.runc("resume", "c1")
        container.expect_running()
        container.checkpoint(images=images)
    container.remove()
    container.restore(images)
    container.finish()


def refusing_script(world, action="post-dump"):
    """Adds to CRIU's configuration an action script that refuses the dump or restore. Returns the script."""
    script = world.folder / "tmp" / "refuse"
    script.write_text(f'#!/bin/sh\n[ "$CRTOOLS_SCRIPT_ACTION" != {action} ]\n')
    script.chmod(0o755)
    with open(world.folder / "criu.conf", "a") as config:
        config.write(f"action-script {script}\n")
    return script


def paused_and_refused(world, stage):
    """CRIU freezes the container again when it exits, so its agents cannot answer before it is unpaused."""
    container = runc.Container(stage, "c1", *VECTOR).run()
    images = stage.plugin.image_folder()
    stage.runc("pause", "c1")
    script = refusing_script(world)
    container.checkpoint(images=images, code=1)
    demand(container.state()["status"] == "paused", lambda: container.state())
    log = world.folder / "state" / "run" / "stasisd.log"
    wait_until(lambda: "has left the container paused" in processes.text_of(log), 30, lambda: processes.text_of(log))
    stage.runc("resume", "c1")
    container.expect_running()
    stage.plugin.await_idle()
    script.write_text("#!/bin/sh\n")
    container.checkpoint(images=images)
    container.remove()
    container.restore(images)
    container.finish()


def needs_agent(_world, stage):
    """Several GPU processes without the agent are refused before anything is touched."""
    container = runc.Container(stage, "c1", "tree", *VECTOR[1:], agent=False).run()
    images = stage.plugin.image_folder()
    container.checkpoint(images=images, code=1)
    demand("run without an agent" in container.criu_log("dump", images), lambda: container.criu_log("dump", images))
    container.finish()


def restart_daemon(stage, env=None):
    stage.plugin.end_daemon()
    stage.plugin.start_daemon(env)


def held(world, stage, phase):
    """Restarts the daemon so that its worker stops before a phase. Returns the file whose removal lets it continue."""
    hold = world.folder / "tmp" / "hold"
    hold.write_text("")
    restart_daemon(stage, {"STASIS_FAULT": f"{phase}:before:hold={hold}"})
    return hold


class Steps:
    """Stops a dump or restore at a step: before a phase of the worker, or where CRIU runs its action scripts."""

    PHASES = ("data-save", "commit", "gpu-return", "load-room", "data-read", "gpu-restore")

    def __init__(self, world, stage):
        self.world, self.stage = world, stage
        self.folder = world.folder / "tmp" / "steps"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        script = self.folder / "script"
        script.write_text(f'#!/bin/sh\nhold={self.folder}/$CRTOOLS_SCRIPT_ACTION\n[ ! -e $hold ] || touch $hold.reached\n'
                          'while [ -e $hold ]; do sleep 0.02; done\n')
        script.chmod(0o755)
        with open(world.folder / "criu.conf", "a") as config:
            config.write(f"action-script {script}\n")
        holds = [f"{phase}:before:hold={self.folder}/{phase}" for phase in self.PHASES]
        self.env = {"STASIS_FAULT": ",".join(holds)}
        restart_daemon(stage, self.env)

    def kill_at(self, step, begin, victim):
        """Starts a command, kills the victim at this step, and waits for the command's end."""
        hold, reached = self.folder / step, self.folder / f"{step}.reached"
        hold.touch()
        command = begin()
        has_ended = getattr(command, "process", command).poll
        is_there = (lambda: self.world.has_begun(step)) if step in self.PHASES else reached.exists
        wait_until(lambda: is_there() or has_ended() is not None, 60, f"the command does not come to {step}")
        demand(is_there(), lambda: f"the command ended before {step}:\n{self._errors()}")
        if step not in self.PHASES:
            reached.unlink()
        names = {"criu": "criu", "init": "vector", "worker": "stasis-worker", "daemon": "stasisd"}
        victims = [command.pid] if victim == "runc" else self.world.named(names[victim])
        demand(victims, f"there is no {victim}")
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):  # a worker of a short call that has ended
                os.kill(pid, signal.SIGKILL)
        hold.unlink()
        command.wait(60)
        self.stage.plugin.await_idle()
        if victim == "daemon":
            self.world.await_daemons_end()
            self.stage.plugin.start_daemon(self.env)

    def _errors(self):
        """Returns the errors and the plugin's lines in CRIU's newest log."""
        logs = sorted(self.world.folder.glob("criu-image-*/*.log"), key=lambda log: log.stat().st_mtime)
        lines = logs[-1].read_text(errors="replace").splitlines() if logs else []
        return "\n".join(line for line in lines if "Error" in line or "stasis" in line)[-1500:]

    def close(self):
        restart_daemon(self.stage)
        shutil.rmtree(self.folder)


def some(world, victim, steps):
    """Without --all, CRIU is killed at every step, and the other victims at every second one."""
    return steps if world.every or victim == "criu" else steps[victim == "daemon"::2]


def killed_in_dump(world, stage, victim, *steps):
    """Kills the victim at each step. The container then continues, or has ended with a good image."""
    container = runc.Container(stage, "c1", *VECTOR).run()
    held = Steps(world, stage)
    for step in some(world, victim, steps):
        images = stage.plugin.image_folder()
        words = ["--leave-running"] if step == "gpu-return" else []
        held.kill_at(step, lambda: stage.begin("checkpoint", "--image-path", images, "--work-path", images, *words, "c1"),
                     victim)
        if container.state()["status"] == "running":
            demand(victim != "init", "it is not dead")
        else:
            container.remove()
            committed = step == "post-dump"
            demand(committed or victim in ("init", "daemon", "runc"), lambda: f"{step}: the program was lost")
            if committed or victim != "init":
                container.restore(images)
            else:
                container.start()
        container.expect_running()
        world.expect_clean()
    container.finish()
    held.close()


def killed_in_restore(world, stage, victim, *steps):
    """Kills the victim at each step. The container then runs, or nothing of it is left and the image is good."""
    container, images = ended(stage)
    held = Steps(world, stage)
    for step in some(world, victim, steps):
        held.kill_at(step, lambda: container.begin_restore(images), victim)
        if container.state()["status"] == "running":
            container.expect_running()
        elif victim == "criu":
            wait_until(lambda: world.reap() or not world.named("vector"), 30,
                       lambda: f"{step} left: {[processes.describe(p) for p in world.named('vector')]}")
        if victim == "criu":
            for folder in pathlib.Path("/tmp").glob(".criu.mntns.*"):
                folder.rmdir()  # a killed CRIU leaves this empty folder
        yard = str(stage.root / "c1" / "criu-root")
        if victim == "runc" and yard in isolate.mounts():
            isolate.unmount(yard)  # a killed runc leaves this mount, whatever CRIU does
        stage.runc("delete", "--force", "c1", code=None)
        wait_until(lambda: world.reap() or not world.named("vector"), 30, f"{step}: the container does not end")
        container.remove()
        world.expect_clean()
    container.restore(images)
    container.finish()
    held.close()


def fails_to_restore(world, container, images, why):
    """Nothing of the container is left after a failed restore."""
    container.restore(images, code=1)
    demand(why in container.criu_log("restore", images), lambda: container.criu_log("restore", images))
    container.runc.plugin.await_idle()
    wait_until(lambda: world.reap() or not world.named("vector"), 30, "a process is left")
    container.runc.runc("delete", "--force", container.name, code=None)
    world.expect_clean()


def script_refuses(world, stage, action):
    """Another action script refuses the dump, or the restore, after our script has accepted it."""
    container = runc.Container(stage, "c1", *VECTOR).run()
    images = stage.plugin.image_folder()
    script = refusing_script(world, action)
    if action == "post-dump":
        container.checkpoint(images=images, code=1)
        container.expect_running()
    else:
        container.checkpoint(images=images)
        container.remove()
        fails_to_restore(world, container, images, "Aborting restore due to post-restore script")
        script.write_text("#!/bin/sh\n")
        container.restore(images)
    container.finish()


def without_plugin(world, stage):
    """CRIU itself refuses the dump because of the GPU, and the restore because the image names the plugin."""
    container = runc.Container(stage, "c1", *VECTOR).run()
    images = stage.plugin.image_folder()
    config = world.folder / "criu.conf"
    text = config.read_text()
    config.write_text("libdir /proc/self/task\n")
    container.checkpoint(images=images, code=1)
    container.expect_running()
    config.write_text(text)
    container.checkpoint(images=images)
    container.remove()
    config.write_text("libdir /proc/self/task\n")
    fails_to_restore(world, container, images, "Missing required plugin: stasis_plugin")
    config.write_text(text)
    container.restore(images)
    container.finish()


def changed_byte(world, stage):
    container, images = ended(stage)
    pack = next((images / "stasis" / "packs").iterdir())
    good = pack.read_bytes()
    pack.write_bytes(good[:4096] + bytes([good[4096] ^ 1]) + good[4097:])
    fails_to_restore(world, container, images, "is damaged")
    pack.write_bytes(good)
    container.restore(images)
    container.finish()


def agent_replaced(world, stage, mounted):
    """An upgrade replaces the agent's library while the container runs with the old one."""
    library = world.folder / "tmp" / "agents" / "libstasis-agent.so"
    library.parent.mkdir(exist_ok=True)
    # As installed: with the symbols of a build it is too large for CRIU to save it as a deleted file.
    subprocess.run(["strip", "-o", library, world.build / "lib" / "libstasis-agent.so"], check=True)
    mount = (library, "/opt/library.so", "ro") if mounted == "file" else (library.parent, "/opt/library", "ro")
    preload = "/opt/library.so" if mounted == "file" else "/opt/library/libstasis-agent.so"
    edits = ({"LD_PRELOAD": preload}, [mount])
    container = runc.Container(stage, "c1", *VECTOR, agent=False, edits=edits).run()
    other = library.parent / "other"
    other.write_bytes(library.read_bytes() + b"another")
    other.rename(library)
    images = stage.plugin.image_folder()
    if mounted == "file":
        container.checkpoint(images=images, code=1)
        demand("was deleted or replaced" in container.criu_log("dump", images), "the refusal has no reason")
    else:
        container.checkpoint(images=images)
        container.remove()
        container.restore(images)
    container.finish()
    shutil.rmtree(library.parent)


def image_folder_is_full(world, stage, *words):
    container = runc.Container(stage, "c1", *VECTOR).run()
    images = stage.plugin.image_folder()
    isolate.mount("tmpfs", str(images), "tmpfs", data="size=12M")
    try:
        container.checkpoint(*words, images=images, code=1)
        stage.plugin.await_idle()
        demand(not any(p.name.startswith(".") for p in images.iterdir()), "half of the data is left")
    finally:
        isolate.unmount(str(images))
    container.finish()


def slow_suspend(world, stage):
    """CRIU's timeout does not apply to the copy of GPU memory."""
    container = runc.Container(stage, "c1", *VECTOR).run()
    images = stage.plugin.image_folder()
    hold = held(world, stage, "data-save")
    command = stage.begin("checkpoint", "--image-path", images, "--work-path", images, "c1")
    world.await_phase("data-save")
    time.sleep(12)
    hold.unlink()
    demand(command.wait().code == 0, lambda: f"{command}\n{container.criu_log('dump', images)}")
    container.remove()
    container.restore(images)
    container.finish()


def early(world, stage):
    """With --leave-running, a container continues while its GPU data is still being written."""
    container = runc.Container(stage, "c1", *VECTOR).run()
    images = stage.plugin.image_folder()
    hold = held(world, stage, "commit")
    command = stage.begin("checkpoint", "--image-path", images, "--work-path", images, "--leave-running", "c1")
    world.await_phase("commit")
    container.expect_running()
    demand(not (images / "stasis" / "manifest.pb").exists() and command.process.poll() is None, "it is complete already")
    hold.unlink()
    demand(command.wait().code == 0, lambda: f"{command}\n{container.criu_log('dump', images)}")
    demand((images / "stasis" / "manifest.pb").exists(), "there is no GPU data")
    container.kill()
    container.restore(images)
    container.finish()


def copies_in_one_network(_world, stage):
    """Processes that share GPU memory find each other by abstract sockets, which belong to the network namespace."""
    words = ("ipc", "--memory", "8M", "--interval", "10")
    first = runc.Container(stage, "first", *words, network="host").run()
    images = stage.plugin.image_folder()
    first.checkpoint("--leave-running", images=images)
    copies = [runc.Container(stage, name, *words, network="host") for name in ("second", "third")]
    for copy in copies:
        copy.restore(images)
    for container in [first, *copies]:
        container.expect_running()
    again = stage.plugin.image_folder()
    copies[0].checkpoint(images=again)
    copies[0].remove()
    copies[0].restore(again)
    for container in [first, *copies]:
        container.finish()


def another_gpu(world, stage):
    """The machine has other GPUs at the restore than at the checkpoint."""
    try:
        _another_gpu(world, stage)
    finally:
        stage.replace_gpus(0, 2)


def _another_gpu(world, stage):
    stage.replace_gpus(0, 1)
    container = runc.Container(stage, "c1", *VECTOR).run()
    images = stage.plugin.image_folder()
    container.checkpoint("--leave-running", images=images)
    container.kill()
    stage.replace_gpus(1, 2)
    container.restore(images, code=1)
    log = container.criu_log("restore", images)
    demand("of the program is not here, and several may replace it: 0 (" in log, log)
    demand("set STASIS_GPU_MAP=OLD=NEW" in log, log)
    stage.env["STASIS_GPU_MAP"] = "0=1"
    container.restore(images)
    container.finish()
    del stage.env["STASIS_GPU_MAP"]
    # No map is needed for as many GPUs as before.
    stage.replace_gpus(1, 2)
    container = runc.Container(stage, "c2", *VECTOR).run()
    container.checkpoint(images=images)
    container.remove()
    stage.replace_gpus(3, 2)
    container.restore(images)
    container.finish()
    log = processes.text_of(world.state / "run" / "stasisd.log")
    demand("000000000003 replaces GPU-" in log and "000000000004 replaces GPU-" in log, log[-3000:])


@contextlib.contextmanager
def with_devices(world, stage, nodes):
    """Gives the test a /dev of its own with these nodes, and restarts the daemon so that it uses this /dev."""
    with runc.own_devices(world, nodes):
        restart_daemon(stage)
        yield


def another_driver(world, stage):
    """The machine, or the new container, has another version of the driver."""
    container, images = ended(stage)

    restart_daemon(stage, {"SOFTGPU_DRIVER_VERSION": "9.8"})
    container.restore(images, code=1)
    log = container.criu_log("restore", images)
    demand("the image was made with driver softgpu 0.1.0, and this machine has softgpu 9.8" in log, log)
    demand("Forking task" not in processes.text_of(images / "restore.log"), "CRIU has begun")
    restart_daemon(stage)

    newer = shutil.copytree(world.build / "lib" / "softgpu", world.folder / "newer", symlinks=True)
    with open(newer / "libcuda.so.1", "ab") as library:
        library.write(b"newer")
    config = container.bundle / "config.json"
    before = config.read_text()
    config.write_text(before.replace(str(world.build / "lib" / "softgpu"), str(newer)))
    container.restore(images, code=1)
    log = container.criu_log("restore", images)
    demand("opt/softgpu/libcuda.so.1 has bad size" in log, log)
    demand("Forking task" in processes.text_of(images / "restore.log"), log)
    stage.plugin.await_idle()
    config.write_text(before)
    container.restore(images)
    container.finish()


def after_a_reboot(world, stage):
    """The driver's dynamic device numbers have changed: CRIU restores the old ones."""
    container = runc.Container(stage, "c1", *VECTOR)
    container.set_devices(nvidia_uvm=(508, 0))
    container.run()
    images = stage.plugin.image_folder()
    container.checkpoint(images=images)
    container.remove()
    with with_devices(world, stage, {"nvidia-uvm": (509, 0)}):
        container.restore(images, code=1)
        log = container.criu_log("restore", images)
        demand("the device rules of the container do not allow /dev/nvidia-uvm" in log, log)
        container.set_devices(nvidia_uvm=(509, 0))
        container.restore(images)
        node = os.stat(f"/proc/{container.pid}/root/dev/nvidia-uvm")
        demand(node.st_rdev == os.makedev(509, 0) and node.st_mode & 0o777 == 0o640, f"{node}")
        container.finish()


def another_device(world, stage):
    """The new container may use another GPU of this machine than the old one."""
    with with_devices(world, stage, {"nvidia0": (195, 0), "nvidia1": (195, 1)}):
        container = runc.Container(stage, "c1", *VECTOR)
        container.set_devices(nvidia0=(195, 0))
        container.run()
        images = stage.plugin.image_folder()
        container.checkpoint(images=images)
        container.remove()
        container.set_devices()
        container.restore(images, code=1)
        log = container.criu_log("restore", images)
        demand("of the program is not here, and there is no other GPU of its model" in log, log)
        container.set_devices(nvidia1=(195, 1))
        container.restore(images)
        demand(os.stat(f"/proc/{container.pid}/root/dev/nvidia1").st_rdev == os.makedev(195, 1), "it has no device")
        container.finish()
    log = processes.text_of(world.state / "run" / "stasisd.log")
    demand("000000000001 replaces GPU-" in log, log[-3000:])


CASES = [(with_runc, *case) for case in (
    (there_and_back, "vector", "agent"),
    (there_and_back, "vector", "driver"),
    (there_and_back, "tree", "agent"),
    (there_and_back, "ring", "agent", "--memory", "8M", "--children", "4", "--devices", "2", "--interval", "10"),
    (there_and_back, "ipc", "agent", "--memory", "8M", "--interval", "10"),
    (there_and_back, "exported", "agent", "--memory", "8M", "--interval", "10"),
    (needs_agent,),
    *((killed_in_dump, victim, "data-save", "network-lock", "commit", "post-dump", "gpu-return")
      for victim in ("criu", "runc", "init", "worker", "daemon")),
    *((killed_in_restore, victim, "load-room", "data-read", "post-setup-namespaces", "post-restore", "gpu-restore",
       "pre-resume") for victim in ("criu", "runc", "worker", "daemon")),
    (killed_in_restore, "init", "post-restore", "gpu-restore", "pre-resume"),
    (script_refuses, "post-dump"),
    (script_refuses, "post-restore"),
    (without_plugin,),
    (changed_byte,),
    (agent_replaced, "file"),
    (agent_replaced, "folder"),
    (image_folder_is_full,),
    (image_folder_is_full, "--leave-running"),
    (slow_suspend,),
    (early,),
    (under_another_id,),
    (copies_in_one_network,),
    (another_gpu,),
    (another_driver,),
    (after_a_reboot,),
    (another_device,),
    (at_the_same_time,),
    (paused,),
    (paused, "--leave-running"),
    (paused_and_refused,),
)]

if __name__ == "__main__":
    skip_without("runc")
    sys.exit(cases.main(CASES))
