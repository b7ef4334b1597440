"""runc_test.py --build DIR: runc's checkpoint and restore of GPU containers, with our plugin in CRIU."""

import os
import pathlib
import shutil
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))

import cases  # noqa: E402
import isolate  # noqa: E402
import processes  # noqa: E402
import runc  # noqa: E402
from processes import wait_until  # noqa: E402
from world import demand  # noqa: E402

VECTOR = ("vector", "--memory", "24M", "--interval", "10")


def with_runc(world, test, *args):
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


def there_and_back(world, stage, workload, agent):
    container = runc.Container(stage, "c1", workload, *VECTOR[1:], agent=agent == "agent").run()
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


CASES = [(with_runc, *case) for case in (
    (there_and_back, "vector", "agent"),
    (there_and_back, "vector", "driver"),
    (there_and_back, "tree", "agent"),
    (under_another_id,),
    (paused,),
    (paused, "--leave-running"),
)]

if runc.missing():
    print(f"SKIPPED: {runc.missing()}")
    sys.exit(isolate.SKIPPED)
sys.exit(cases.main(CASES))
