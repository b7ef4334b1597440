"""Shared by the tests of all container runtimes: the root file system of containers, and the mounts and environment
variables of GPU programs."""

import contextlib
import json
import os
import shutil
import subprocess
import sys

import isolate
from world import demand

AGENT = "/opt/agent/libstasis-agent.so"
# Folders of the machine that a dynamically linked program needs. Not all of /usr, because the CDI device mounts the
# agent's folder below /usr/lib.
SYSTEM = ("/usr/bin", f"/usr/lib/{os.uname().machine}-linux-gnu", "/usr/lib64", "/bin", "/lib", "/lib64")


def skip_without(*programs):
    """Ends the test with a reason if a program is not installed."""
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        print(f"SKIPPED: {', '.join(missing)} is not installed")
        sys.exit(isolate.SKIPPED)


def make_root(folder):
    """Makes a root file system with the folders into which mounts() are mounted."""
    for system in SYSTEM:
        inside = folder / system.strip("/")
        inside.parent.mkdir(parents=True, exist_ok=True)
        if os.path.islink(system):
            inside.symlink_to(os.readlink(system))
        elif os.path.exists(system):
            inside.mkdir(exist_ok=True)
    for name in ("opt/w", "opt/softgpu", "opt/agent", "gpu", "tmp"):
        (folder / name).mkdir(parents=True)
    return folder


def agent_folder(world):
    """Returns the folder that is mounted as /opt/agent in containers."""
    folder = world.folder / "agent"
    if not folder.exists():
        folder.mkdir()
        shutil.copy(world.build / "lib" / "libstasis-agent.so", folder)
    return folder


def mounts(world, agent=True):
    """Returns the bind mounts of a workload: (source, destination, mode)."""
    found = [(world.build / "lib" / "softgpu", "/opt/softgpu", "ro"), (world.workloads, "/opt/w", "ro"),
             (world.gpu_folder, "/gpu", "rw")]
    if agent:
        found.append((agent_folder(world), "/opt/agent", "ro"))
    system = [path for path in SYSTEM if os.path.exists(path) and not os.path.islink(path)]
    return found + [(path, path, "ro") for path in system]


def variables(world, agent=True):
    found = {"SOFTGPU_DIR": "/gpu", "LD_LIBRARY_PATH": "/opt/softgpu",
             "SOFTGPU_DEVICES": world.env["SOFTGPU_DEVICES"], "SOFTGPU_MEMORY": world.env["SOFTGPU_MEMORY"]}
    return {**found, "LD_PRELOAD": AGENT} if agent else found


def program_of(workload):
    """Returns the path in a container of a workload, or of a program of the machine."""
    return workload if workload.startswith("/") else f"/opt/w/{workload}"


def cdi_edits(world):
    """Returns the environment variables and the bind mounts of the CDI device stasis.dev/agent=on."""
    folder = world.folder / "cdi"
    world.stasis("cdi", "install", "--dir", folder)
    edits = json.loads((folder / "stasis.json").read_text())["devices"][0]["containerEdits"]
    return (dict(variable.split("=", 1) for variable in edits["env"]),
            [(mount["hostPath"], mount["containerPath"], "ro") for mount in edits["mounts"]])


@contextlib.contextmanager
def private_machine(world):
    """Hides the folders that the runtimes and `stasis container setup` use: the test gets a copy of /etc, and empty
    folders instead of the others."""
    etc = world.folder / "etc"
    subprocess.run(["cp", "-a", "/etc", etc], check=True)
    for name in ("criu", "cdi"):
        shutil.rmtree(etc / name, ignore_errors=True)
    isolate.mount(str(etc), "/etc", flags=isolate.MS_BIND)
    mounted = ["/etc"]
    for name in ("/run", "/var/lib/containers"):
        if os.path.isdir(name):
            isolate.mount("none", name, "tmpfs", data="mode=0755")
            mounted.append(name)
    world._mounts = isolate.mounts()
    try:
        yield
    finally:
        for name in reversed(mounted):
            subprocess.run(["umount", "-l", name], check=True)
        world._mounts = isolate.mounts()


def state_of(listed, target):
    """Returns the container in the output of `stasis ps --containers --json`."""
    found = [one for one in listed["containers"] if one["target"] == target]
    demand(len(found) == 1, f"{target}: {listed}")
    return found[0]
