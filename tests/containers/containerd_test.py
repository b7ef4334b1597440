"""containerd_test.py --build DIR: containerd's checkpoint and restore of a GPU container, with our plugin in CRIU."""

import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))

import cases  # noqa: E402
import containerd  # noqa: E402
from containers import skip_without  # noqa: E402
from world import demand  # noqa: E402

VECTOR = ("vector", "--memory", "24M", "--interval", "10")


def with_containerd(world, test, *args):
    stage = containerd.Containerd(world)
    stage.keep_broker()
    stage.plugin.start_daemon()
    try:
        test(world, stage, *args)
    finally:
        stage.close()
        stage.plugin.end_daemon()
        stage.end_broker()
        shutil.rmtree(stage.plugin.folder)


def into_another_id(_world, stage):
    """ctr pauses the container, checkpoints it with --leave-running, and resumes it."""
    stage.run("c1", *VECTOR)
    stage.ctr("container", "checkpoint", "--task", "--rw", "--image", "c1", "localhost/checkpoint:1")
    stage.expect_running()
    stage.end("c1", "KILL")
    stage.ctr("container", "restore", "--rw", "--live", "c2", "localhost/checkpoint:1")
    stage.expect_running()
    stage.end("c2", "TERM")
    demand("EXIT-SUCCESS" in stage.text(), lambda: stage.text()[-1000:])


CASES = [(with_containerd, into_another_id)]

skip_without("containerd", "containerd-shim-runc-v2", "ctr", "runc")
sys.exit(cases.main(CASES))
