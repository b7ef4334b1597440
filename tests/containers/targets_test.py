#!/usr/bin/env python3
"""Containers of runc and podman as targets: ps, suspend, resume, check, dump, restore; and what a dump by the process
id of a container says."""
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "stage"))
import one_world  # noqa: E402
import processes  # noqa: E402
from containers import Containers, Podman, Runc, skip_without, state_of  # noqa: E402
from processes import wait_until  # noqa: E402
from programs import Program  # noqa: E402
from world import demand  # noqa: E402

SLEEP = ("/usr/bin/sleep", "10000")


def vector(world):
    return world.workloads / "vector", "--memory", "8M", "--interval", "50"


def away_and_back(world, target, expect_working, options=()):
    """Suspends and resumes it, and compares what `ps` says."""
    def look():
        return state_of(world.stasis("ps", "--containers", "--json", *options).json(), target)

    expect_working()
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
    expect_working()


def dump_without_set_up(world, target, options=()):
    """The runtime's CRIU would fail on the GPU."""
    refused = world.stasis("dump", target, *options, expect=5)
    demand("`sudo stasis container setup`" in refused.err, f"{refused}")
    checked = world.stasis("check", target, *options, "--json", expect=5).json()
    found = {finding["id"]: finding["level"] for finding in checked["findings"]}
    demand(found["container-criu"] == "cannot" and found["program"] == "ok", f"{found}")
    demand("mount-namespace" not in found and "pid-namespace" not in found, f"{found}")


def runc_gpu(world, containers):
    options = ("--root", containers.runc_root)
    container = Runc(containers, "gpu", vector(world), *containers.gpu())
    away_and_back(world, "runc:gpu", container.expect_working, options)
    dump_without_set_up(world, "runc:gpu", options)
    container.expect_working()
    # The device's variables and mounts brought the agent in.
    demand("libstasis-agent.so" in open(f"/proc/{container.pid()}/maps").read(), "the agent is not loaded")
    container.delete()
    world.stasis("suspend", "runc:gpu", *options, expect=3)


def runc_dump(world, containers):
    options = ("--root", containers.runc_root)
    container = Runc(containers, "cpu", SLEEP)
    planned = world.stasis("dump", "runc:cpu", *options, "--dry-run").out
    demand("runc --root" in planned and "checkpoint" in planned, planned)
    containers.run_silently("runc", "--root", containers.runc_root, "exec", "--detach", "cpu", *SLEEP)
    refused = world.stasis("dump", "runc:cpu", *options, expect=7)
    demand("was started in the container by `exec`" in refused.err, f"{refused}")
    for pid in set(world.named("sleep")) - {container.pid()}:
        processes.end(pid)
    wait_until(lambda: world.named("sleep") == [container.pid()], 60, "it does not end")
    saved = world.stasis("dump", "runc:cpu", *options, "--json").json()
    demand((pathlib.Path(saved["image"]) / "container.json").is_file() and saved["pid"] == 0, f"{saved}")
    restored = world.stasis("restore", "runc:cpu", "--json").json()
    demand(restored["pid"] == container.pid(), f"{restored}")
    world.stasis("restore", saved["image"], "--job", "copy")
    listed = world.stasis("ps", "--containers", "--json", *options).json()
    for name in ("cpu", "copy"):
        demand(state_of(listed, f"runc:{name}")["state"] == "running", f"{listed}")
        containers.run_words("runc", "--root", containers.runc_root, "delete", "--force", name)
    world.stasis("dump", "runc:cpu", *options, expect=3)
    world.stasis("restore", "runc:nobody", expect=3)


def by_process_id(world, pid, target):
    refused = world.stasis("dump", pid, expect=5)
    demand(f"`stasis dump {target}`" in refused.err, f"{refused}")
    findings = world.stasis("check", pid, "--json", expect=5).json()["findings"]
    found = [finding for finding in findings if finding["id"] == "mount-namespace"]
    demand(found and f"`stasis dump {target}`" in found[0]["fix"], f"{findings}")


def podman_all(world, containers):
    podman = Podman(containers)
    podman.run("gpu", vector(world), *containers.gpu())
    away_and_back(world, "podman:gpu", lambda: podman.expect_working("gpu"))
    dump_without_set_up(world, "podman:gpu")
    number = podman("inspect", "--format", "{{.Id}}", "gpu")[:12]
    by_process_id(world, podman.pid("gpu"), f"podman:{number}")
    podman("rm", "--force", "--time", "0", "gpu")

    podman.run("cpu", SLEEP)
    world.stasis("dump", "podman:cpu")
    demand(state_of(world.stasis("ps", "--containers", "-a", "--json").json(), "podman:cpu")["pid"] is None, "it runs")
    world.stasis("suspend", "podman:cpu", expect=7)
    back = world.stasis("restore", "podman:cpu", "--pid-file", world.folder / "pid", "--json").json()
    demand(back["pid"] == podman.pid("cpu") == int((world.folder / "pid").read_text()), f"{back}")
    archive = world.folder / "archives" / "one.tar"
    options = ("-d", archive.parent, "--name", "one", "--leave-running")
    saved = world.stasis("dump", "podman:cpu", *options, "--json").json()
    demand(saved["image"] == str(archive) and archive.is_file() and saved["pid"] == back["pid"], f"{saved}")
    world.stasis("dump", "podman:cpu", *options, expect=7)
    world.stasis("restore", archive, "--job", "copy")
    demand(podman.pid("copy") > 0, "there is no copy")
    podman("rm", "--force", "--time", "0", "cpu", "copy")


def wrong_words(world):
    for target in ("podman:", "podman:-x", "runc:a/b", "docker:x"):
        world.stasis("suspend", target, expect=2)
    for words in (("--tcp", "close"), ("--criu-opt", "a=b")):
        world.stasis("dump", "podman:x", *words, expect=2)
    world.stasis("restore", "podman:x", "--gpu-map", "0=1", expect=2)


def run(world):
    containers = Containers(world)
    skip_without("runc", "podman", "conmon")
    wrong_words(world)
    # Starts softgpu's broker outside of containers, in which it could not be started.
    holder = Program(world, "holder", "counter", ["--memory", "4M"]).run()
    runc_gpu(world, containers)
    runc_dump(world, containers)
    podman_all(world, containers)
    holder.kill()
    world.stasis("delete", "holder")
    wait_until(lambda: world.reap() or not world.named("conmon"), 60, "podman does not end")
    containers.close()


if __name__ == "__main__":
    sys.exit(one_world.main(run))
