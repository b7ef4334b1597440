"""runc_test.py --build DIR: runc's checkpoint and restore of GPU containers, with our plugin in CRIU."""

import os
import pathlib
import shutil
import signal
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


def with_runc(world, test, *args):
    world.set_gpu(2, "1G")
    world.env.pop("SOFTGPU_FIRST", None)
    stage = runc.Runc(world)
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


def needs_agent(_world, stage):
    """Several GPU processes without the agent are refused, and nothing was touched."""
    container = runc.Container(stage, "c1", "tree", *VECTOR[1:], agent=False).run()
    images = stage.plugin.image_folder()
    container.checkpoint(images=images, code=1)
    demand("run without an agent" in container.criu_log("dump", images), lambda: container.criu_log("dump", images))
    container.finish()


def held(world, stage, phase):
    """Starts the daemon again; its worker will stop before a phase. Returns the file that holds it."""
    stage.plugin.end_daemon()
    hold = world.folder / "tmp" / "hold"
    hold.write_text("")
    stage.plugin.start_daemon({"STASIS_FAULT": f"{phase}:before:hold={hold}"})
    return hold


def killed(world, stage, victim, phase, *words):
    """CRIU or runc is killed during a checkpoint: the container runs on. Or the container's first process: it is gone."""
    container = runc.Container(stage, "c1", *VECTOR).run()
    images = stage.plugin.image_folder()
    hold = held(world, stage, phase)
    command = stage.begin("checkpoint", "--image-path", images, "--work-path", images, *words, "c1")
    world.await_phase(phase)
    victims = {"criu": world.named("criu"), "runc": [command.pid], "init": [container.pid]}[victim]
    demand(victims, f"there is no {victim}")
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    hold.unlink()
    command.wait()
    stage.plugin.await_idle()
    if victim == "init":
        container.remove()
        return
    if victim == "runc" and not words and container.state()["status"] != "running":
        # CRIU went on without runc and has ended the program: the image is good.
        container.remove()
        stage.plugin.end_daemon()
        stage.plugin.start_daemon()
        container.restore(images)
    container.finish()


def killed_in_restore(world, stage, victim, phase):
    container = runc.Container(stage, "c1", *VECTOR).run()
    images = stage.plugin.image_folder()
    container.checkpoint(images=images)
    container.remove()
    hold = held(world, stage, phase)
    command, pump = container.begin_restore(images)
    world.await_phase(phase)
    victims = {"criu": world.named("criu"), "runc": [command.pid]}[victim]
    demand(victims, f"there is no {victim}")
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    hold.unlink()
    command.wait()
    stage.plugin.await_idle()
    if victim == "criu" or container.state()["status"] != "running":
        wait_until(lambda: world.reap() or not world.named("vector"), 30,
                   lambda: f"left: {[processes.describe(p) for p in world.named('vector')]}")
    if victim == "runc":
        # A killed runc leaves it, whatever CRIU does.
        isolate.unmount(str(stage.root / "c1" / "criu-root"))
    stage.runc("delete", "--force", "c1")
    wait_until(lambda: world.reap() or not world.named("vector"), 30, "the container does not end")
    pump.wait()
    world.disown(pump.pid)
    stage.plugin.end_daemon()
    stage.plugin.start_daemon()
    container.restore(images)
    container.finish()


def image_folder_is_full(world, stage):
    container = runc.Container(stage, "c1", *VECTOR).run()
    images = stage.plugin.image_folder()
    isolate.mount("tmpfs", str(images), "tmpfs", data="size=12M")
    try:
        container.checkpoint(images=images, code=1)
        stage.plugin.await_idle()
        demand(not any(p.name.startswith(".") for p in images.iterdir()), "half of the data is left")
    finally:
        isolate.unmount(str(images))
    container.finish()


def slow_suspend(world, stage):
    """CRIU's alarm is not for the copy of GPU memory."""
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
    # As many GPUs as before need no map.
    stage.replace_gpus(1, 2)
    container = runc.Container(stage, "c2", *VECTOR).run()
    container.checkpoint(images=images)
    container.remove()
    stage.replace_gpus(3, 2)
    container.restore(images)
    container.finish()
    log = processes.text_of(world.state / "run" / "stasisd.log")
    demand("000000000003 replaces GPU-" in log and "000000000004 replaces GPU-" in log, log[-3000:])


def restart_daemon(stage):
    stage.plugin.end_daemon()
    stage.plugin.start_daemon()


def another_driver(world, stage):
    """The machine, or the new container, has another version of the driver."""
    container = runc.Container(stage, "c1", *VECTOR).run()
    images = stage.plugin.image_folder()
    container.checkpoint(images=images)
    container.remove()

    stage.plugin.end_daemon()
    stage.plugin.start_daemon({"SOFTGPU_DRIVER_VERSION": "9.8"})
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
    with runc.own_devices(world, {"nvidia-uvm": (509, 0)}):
        restart_daemon(stage)
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
    with runc.own_devices(world, {"nvidia0": (195, 0), "nvidia1": (195, 1)}):
        restart_daemon(stage)
        container = runc.Container(stage, "c1", *VECTOR)
        container.set_devices(nvidia0=(195, 0))
        container.run()
        images = stage.plugin.image_folder()
        container.checkpoint(images=images)
        container.remove()
        container.set_devices()
        container.restore(images, code=1)
        log = container.criu_log("restore", images)
        demand("of the program is not here, and there is no other one of its model" in log, log)
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
    (killed, "criu", "data-save"),
    (killed, "criu", "commit"),
    (killed, "criu", "await-end", "--leave-running"),
    (killed, "runc", "data-save"),
    (killed, "runc", "commit"),
    (killed, "init", "data-save"),
    (killed, "init", "commit"),
    (killed_in_restore, "criu", "load-room"),
    (killed_in_restore, "criu", "data-read"),
    (killed_in_restore, "criu", "gpu-restore"),
    (killed_in_restore, "runc", "gpu-restore"),
    (image_folder_is_full,),
    (slow_suspend,),
    (under_another_id,),
    (copies_in_one_network,),
    (another_gpu,),
    (another_driver,),
    (after_a_reboot,),
    (another_device,),
    (paused,),
    (paused, "--leave-running"),
)]

skip_without("runc")
sys.exit(cases.main(CASES))
