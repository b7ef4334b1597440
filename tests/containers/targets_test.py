#!/usr/bin/env python3
"""Containers of runc and podman as targets: ps, suspend, resume, check, dump and restore, with and without the set-up
of the machine; and the hint of a dump by the process id of a container."""
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "stage"))
import one_world  # noqa: E402
import processes  # noqa: E402
from containers import cdi_edits, private_machine, skip_without, state_of  # noqa: E402
from containerd import Containerd  # noqa: E402
from podman import Podman  # noqa: E402
from processes import wait_until  # noqa: E402
from runc import Container  # noqa: E402
from world import demand  # noqa: E402

SLEEP = ("/usr/bin/sleep", "10000")
VECTOR = ("vector", "--memory", "8M", "--interval", "50")


def away_and_back(world, target, expect_running, options=()):
    """Suspends and resumes the target, and compares the output of `ps`."""
    def look():
        return state_of(world.stasis("ps", "--containers", "--json", *options).json(), target)

    expect_running()
    running = look()
    demand(running["state"] == "running" and running["uses_gpu"] and running["gpu_bytes"] > 8 << 20, f"{running}")
    demand(running["processes"] == 1 and running["pid"] > 0, f"{running}")
    done = world.stasis("suspend", target, *options, "--json").json()
    demand(done["target"] == target and done["pid"] == running["pid"] and done["shared_bytes"] >= 8 << 20, f"{done}")
    away = look()
    demand(away["state"] == "suspended" and away["gpu_bytes"] == 0 and away["suspended_bytes"] > 8 << 20, f"{away}")
    text = world.stasis("ps", "--containers", *options).out
    demand("CONTAINER" in text and "in RAM" in text, text)
    world.stasis("resume", target, *options)
    expect_running()


def dump_without_set_up(world, target, options=()):
    """A dump is refused, because the runtime's CRIU would fail on the GPU."""
    refused = world.stasis("dump", target, *options, expect=5)
    demand("`sudo stasis container setup`" in refused.err, f"{refused}")
    checked = world.stasis("check", target, *options, "--json", expect=5).json()
    found = {finding["id"]: finding["level"] for finding in checked["findings"]}
    demand(found["container-criu"] == "cannot" and found["program"] == "ok", f"{found}")
    demand("mount-namespace" not in found and "pid-namespace" not in found, f"{found}")


def runc_gpu(world, stage):
    options = ("--root", stage.root)
    container = Container(stage, "gpu", *VECTOR, agent=False, edits=cdi_edits(world)).run()
    away_and_back(world, "runc:gpu", container.expect_running, options)
    dump_without_set_up(world, "runc:gpu", options)
    container.expect_running()
    maps = pathlib.Path(f"/proc/{container.pid}/maps").read_text()
    demand("libstasis-agent.so" in maps, "the CDI device has not loaded the agent")
    container.kill()
    world.stasis("suspend", "runc:gpu", *options, expect=3)


def runc_dump(world, stage):
    options = ("--root", stage.root)
    container = Container(stage, "cpu", *SLEEP).start()
    planned = world.stasis("dump", "runc:cpu", *options, "--dry-run").out
    demand("runc --root" in planned and "checkpoint" in planned, planned)
    stage.runc("exec", "--detach", "cpu", *SLEEP)
    refused = world.stasis("dump", "runc:cpu", *options, expect=7)
    demand("was started in the container by `exec`" in refused.err, f"{refused}")
    for pid in set(world.named("sleep")) - {container.pid}:
        processes.end(pid)
    wait_until(lambda: world.named("sleep") == [container.pid], 60, "it does not end")
    saved = world.stasis("dump", "runc:cpu", *options, "--json").json()
    demand((pathlib.Path(saved["image"]) / "container.json").is_file() and saved["pid"] == 0, f"{saved}")
    container.remove()
    restored = world.stasis("restore", "runc:cpu", "--json").json()
    demand(restored["pid"] == container.pid, f"{restored}")
    # A container that Stasis has started can be checkpointed again, also by runc itself.
    saved = world.stasis("dump", "runc:cpu", *options, "--name", "again", "--json").json()
    container.await_stopped()
    stage.runc("delete", "--force", "cpu", code=None)
    world.stasis("restore", "runc:cpu")
    images = stage.plugin.image_folder()
    container.checkpoint(images=images)
    container.remove()
    container.restore(images)
    container.kill()
    world.stasis("restore", saved["image"], "--job", "cpu")
    world.stasis("restore", saved["image"], "--job", "copy")
    listed = world.stasis("ps", "--containers", "--json", *options).json()
    for name in ("cpu", "copy"):
        demand(state_of(listed, f"runc:{name}")["state"] == "running", f"{listed}")
        stage.runc("delete", "--force", name)
    world.stasis("dump", "runc:cpu", *options, expect=3)
    world.stasis("restore", "runc:nobody", expect=3)


def runc_hook(world, stage):
    """NVIDIA's legacy hook mounts files into a container that the runtime has made."""
    options = ("--root", stage.root)
    container = Container(stage, "hooked", *SLEEP).start()
    mount = "mount -t tmpfs x /proc/driver && mkdir /proc/driver/nvidia && mount -t tmpfs x /proc/driver/nvidia"
    subprocess.run(["nsenter", "-t", str(container.pid), "-m", "sh", "-c", mount], check=True)
    for words in (("dump",), ("dump", "--leave-running")):
        refused = world.stasis(*words, "runc:hooked", *options, expect=5)
        demand("--device nvidia.com/gpu=all" in refused.err, f"{refused}")
    checked = world.stasis("check", "runc:hooked", *options, "--json", expect=5).json()
    found = [finding["level"] for finding in checked["findings"] if finding["id"] == "container-hook"]
    demand(found == ["cannot"], f"{checked}")
    container.kill()


def by_process_id(world, pid, target):
    refused = world.stasis("dump", pid, expect=5)
    demand(f"`stasis dump {target}`" in refused.err, f"{refused}")
    findings = world.stasis("check", pid, "--json", expect=5).json()["findings"]
    found = [finding for finding in findings if finding["id"] == "mount-namespace"]
    demand(found and f"`stasis dump {target}`" in found[0]["fix"], f"{findings}")


def podman_all(world, stage):
    stage.run("gpu", *VECTOR, agent=False, edits=cdi_edits(world))
    away_and_back(world, "podman:gpu", lambda: stage.expect_running("gpu"))
    dump_without_set_up(world, "podman:gpu")
    number = stage.podman("inspect", "--format", "{{.Id}}", "gpu").out[:12]
    by_process_id(world, stage.pid("gpu"), f"podman:{number}")
    stage.podman("rm", "--force", "--time", "0", "gpu")

    stage.start("cpu", *SLEEP)
    world.stasis("dump", "podman:cpu")
    demand(state_of(world.stasis("ps", "--containers", "-a", "--json").json(), "podman:cpu")["pid"] is None, "it runs")
    world.stasis("suspend", "podman:cpu", expect=7)
    back = world.stasis("restore", "podman:cpu", "--pid-file", world.folder / "pid", "--json").json()
    demand(back["pid"] == stage.pid("cpu") == int((world.folder / "pid").read_text()), f"{back}")
    archive = world.folder / "archives" / "one.tar"
    options = ("-d", archive.parent, "--name", "one", "--leave-running")
    saved = world.stasis("dump", "podman:cpu", *options, "--json").json()
    demand(saved["image"] == str(archive) and archive.is_file() and saved["pid"] == back["pid"], f"{saved}")
    world.stasis("dump", "podman:cpu", *options, expect=7)
    world.stasis("restore", archive, "--job", "copy")
    demand(stage.pid("copy") > 0, "there is no copy")
    stage.podman("rm", "--force", "--time", "0", "cpu", "copy")


def lose_agents(world):
    """Removes the agents' libraries of this machine. Running containers keep theirs."""
    shutil.rmtree(world.state / "data" / "agents")


def gpu_dumps(world, stage):
    """On a machine that is set up, the runtimes save the GPU state too."""
    paths = ("--plugin-dir", stage.plugin.folder)
    world.stasis("container", "setup", "--runtime", "runc,podman", *paths)
    options = ("--root", stage.root)
    container = Container(stage, "saved", *VECTOR, agent=False, edits=cdi_edits(world)).run()
    refused = world.stasis("dump", "runc:saved", *options, expect=1)
    demand("stasisd does not answer" in refused.err, f"{refused}")
    container.expect_running()
    stage.plugin.start_daemon()
    saved = world.stasis("dump", "runc:saved", *options, "--json").json()
    images = pathlib.Path(saved["image"]) / "checkpoint"
    demand((images / "stasis" / "manifest.pb").is_file(), "there is no GPU data")
    demand(len(list((images / "stasis" / "agent").iterdir())) == 1, "the image does not have the agent's library")
    container.remove()
    lose_agents(world)
    failed = stage.runc("restore", "--bundle", container.bundle, "--image-path", images, "saved", code=1)
    demand("data/agents" in failed.err and "no such file" in failed.err, f"{failed}")
    world.stasis("restore", "runc:saved", "--log", container.log)
    container.expect_running()
    world.stasis("dump", "runc:saved", *options)
    container.await_stopped()
    stage.runc("delete", "--force", "saved", code=None)
    world.stasis("restore", "runc:saved", "--log", container.log)
    container.expect_running()
    stage.runc("delete", "--force", "saved")

    stage.run("saved", *VECTOR, agent=False, edits=cdi_edits(world))
    world.stasis("dump", "podman:saved")
    lose_agents(world)
    refused = world.stasis("restore", "podman:saved", "--gpu-map", "0=9", expect=1)
    demand('there is no GPU "9"' in refused.err, f"{refused}")
    world.stasis("restore", "podman:saved", "--gpu-map", "0=0")
    stage.expect_running("saved")

    world.stasis("dump", "podman:saved", "-d", world.folder / "archives", "--name", "saved")
    stage.podman("rm", "saved")
    lose_agents(world)
    archive = world.folder / "archives" / "saved.tar"
    failed = stage.podman("container", "restore", "--import", archive, code=1)
    demand("data/agents" in failed.err and "no such file" in failed.err, f"{failed}")
    stage.podman("rm", "--all", "--force", "--time", "0")
    world.stasis("restore", archive)
    stage.finish("saved")
    stage.plugin.end_daemon()
    world.stasis("container", "remove", *paths)


def containerd_gpu(world):
    """ctr's checkpoints, on a machine that is set up."""
    stage = Containerd(world)
    stage.keep_broker()
    stage.plugin.start_daemon()
    options = ("--containerd-address", stage.socket)
    target = f"containerd:{stage.namespace}/c1"
    stage.run("c1", *VECTOR, agent=False, edits=cdi_edits(world))
    away_and_back(world, target, stage.expect_running, options)
    refused = world.stasis("dump", target, *options, expect=5)
    demand("add --leave-running" in refused.err, f"{refused}")
    paths = ("--plugin-dir", stage.plugin.folder)
    world.stasis("container", "setup", "--runtime", "containerd", *paths, *options)
    saved = world.stasis("dump", target, *options, "--leave-running", "--name", "saved", "--json").json()
    stage.expect_running()
    stage.end("c1", "KILL")
    lose_agents(world)
    restored = world.stasis("restore", saved["image"], *options, "--job", "c2", "--json").json()
    demand(restored["pid"] > 0, f"{restored}")
    stage.expect_running()
    stage.end("c2", "TERM")
    demand("EXIT-SUCCESS" in stage.text(), lambda: stage.text()[-1000:])
    stage.plugin.end_daemon()
    world.stasis("container", "remove", *paths)
    stage.close()
    stage.end_broker()


def wrong_words(world):
    for target in ("podman:", "podman:-x", "runc:a/b", "docker:x"):
        world.stasis("suspend", target, expect=2)
    for words in (("--tcp", "close"), ("--criu-opt", "a=b")):
        world.stasis("dump", "podman:x", *words, expect=2)
    world.stasis("restore", "podman:x", "--new-pidns", expect=2)


def run(world):
    skip_without("runc", "podman", "conmon", "containerd", "ctr")
    wrong_words(world)
    with private_machine(world):
        stage = Podman(world, configure=False)
        world.env.update(stage.settings, PATH=f"{world.build}/libexec:{world.env['PATH']}")
        stage.keep_broker()
        for part in (runc_gpu, runc_dump, runc_hook, podman_all, gpu_dumps):
            part(world, stage)
        stage.close()
        stage.end_broker()
        shutil.rmtree(stage.plugin.folder)
        containerd_gpu(world)
        wait_until(lambda: world.reap() or not world.named("conmon"), 60, "podman does not end")


if __name__ == "__main__":
    sys.exit(one_world.main(run))
