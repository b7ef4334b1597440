"""podman_test.py --build DIR: podman's checkpoint and restore of GPU containers, with our plugin in CRIU."""

import pathlib
import shutil
import sys
import tarfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stage"))

import cases  # noqa: E402
import podman  # noqa: E402
from containers import skip_without  # noqa: E402
from world import demand  # noqa: E402

VECTOR = ("vector", "--memory", "24M", "--interval", "10")


def with_podman(world, test, *args):
    stage = podman.Podman(world)
    stage.keep_broker()
    stage.plugin.start_daemon()
    try:
        test(world, stage, *args)
    finally:
        stage.close()
        stage.plugin.end_daemon()
        stage.end_broker()
        shutil.rmtree(stage.plugin.folder)


def in_place(_world, stage):
    stage.run("c1", *VECTOR)
    for _ in range(2):
        stage.podman("container", "checkpoint", "c1")
        stage.podman("container", "restore", "c1")
        stage.expect_running("c1")
    stage.finish("c1")


def left_running(_world, stage):
    stage.run("c1", *VECTOR)
    stage.podman("container", "checkpoint", "--leave-running", "c1")
    stage.expect_running("c1")
    stage.podman("kill", "--signal", "KILL", "c1")
    stage.podman("wait", "c1")
    stage.podman("container", "restore", "c1")
    stage.finish("c1")


def archive(world, stage):
    """Exports, removes and imports a container, then restores two clones of it."""
    stage.run("c1", *VECTOR)
    path = world.folder / "tmp" / "c1.tar"
    stage.podman("container", "checkpoint", "--export", path, "c1")
    stage.podman("rm", "c1")
    stage.podman("container", "restore", "--import", path)
    stage.expect_running("c1")
    for name in ("c2", "c3"):
        stage.podman("container", "restore", "--import", path, "--name", name)
        stage.expect_running(name)
    for name in ("c1", "c2", "c3"):
        stage.finish(name)
    path.unlink()


def oci_image(_world, stage):
    stage.run("c1", *VECTOR)
    stage.podman("container", "checkpoint", "--create-image", "localhost/checkpoint:1", "c1")
    stage.podman("rm", "c1")
    stage.podman("container", "restore", "localhost/checkpoint:1", "--name", "c2")
    stage.finish("c2")


def by_reference(world, stage):
    """The archive names an image in the store."""
    stage.plugin.end_daemon()
    stage.plugin.start_daemon({"STASIS_CRIU_DATA": "reference"})
    stage.run("c1", *VECTOR)
    path = world.folder / "tmp" / "c1.tar"
    stage.podman("container", "checkpoint", "--compress", "none", "--export", path, "c1")
    stage.plugin.await_idle()
    stage.podman("rm", "c1")
    with tarfile.open(path) as exported:
        data = [one.name for one in exported if "/stasis/" in one.name]
    demand([pathlib.Path(name).name for name in data] == ["reference.json"], f"{data}")
    images = world.stasis("image", "ls", "--json").json()["images"]
    demand(len(images) == 1 and images[0]["name"].startswith("podman-"), f"{images}")
    image = pathlib.Path(images[0]["path"])

    hidden = image.rename(image.with_name("hidden"))
    refused = stage.podman("container", "restore", "--import", path, code=1)
    logs = f"{refused} {stage.criu_logs()}"
    demand(str(image) in logs, logs)
    hidden.rename(image)
    stage.podman("container", "restore", "--import", path, "--name", "c2")
    stage.finish("c2")
    path.unlink()
    world.stasis("image", "delete", image.name)


def limited(_world, stage):
    """A software GPU's memory counts as the container's. The limit leaves no room for a copy of this memory, so the
    daemon makes the copy outside of the container's control group."""
    stage.run("c1", "vector", "--memory", "300M", "--interval", "10", options=("--memory", "450m"))
    stage.podman("container", "checkpoint", "c1")
    stage.podman("container", "restore", "c1")
    stage.finish("c1")


CASES = [(with_podman, *case) for case in (
    (in_place,),
    (left_running,),
    (archive,),
    (oci_image,),
    (by_reference,),
    (limited,),
)]

skip_without("podman", "runc", "conmon")
sys.exit(cases.main(CASES))
