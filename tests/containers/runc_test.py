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


def with_runc(world, test, *args, stage=None):
    world.set_gpu(2, "1G")
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
    (paused,),
    (paused, "--leave-running"),
)]

if __name__ == "__main__":
    skip_without("runc")
    sys.exit(cases.main(CASES))
