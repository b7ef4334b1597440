"""Containers of podman, with runc below it, that run workloads on software GPUs."""

import os
import re
import shutil
import subprocess

import processes
from processes import wait_until
from runc import AGENT, SYSTEM, Runc, agent_folder
from world import Command, demand


def missing():
    """Returns why podman cannot be tested here; empty if it can."""
    for program in ("podman", "runc", "conmon"):
        if not shutil.which(program):
            return f"{program} is not installed"
    return ""


def image_archive(folder):
    """Makes a tar file of a root file system that needs the machine's mounted into it."""
    empty = folder / "image"
    for system in SYSTEM:
        inside = empty / system.strip("/")
        inside.parent.mkdir(parents=True, exist_ok=True)
        if os.path.islink(system):
            inside.symlink_to(os.readlink(system))
        else:
            inside.mkdir(exist_ok=True)
    for name in ("opt/w", "opt/softgpu", "opt/agent", "gpu", "tmp"):
        (empty / name).mkdir(parents=True)
    archive = folder / "image.tar"
    subprocess.run(["tar", "-C", empty, "-cf", archive, "."], check=True)
    return archive


def mounts(world):
    """What a workload needs: (source, destination, mode)."""
    found = [(world.build / "lib" / "softgpu", "/opt/softgpu", "ro"), (world.workloads, "/opt/w", "ro"),
             (world.gpu_folder, "/gpu", "rw"), (agent_folder(world), "/opt/agent", "ro")]
    return found + [(system, system, "ro") for system in SYSTEM if not os.path.islink(system)]


def variables(world):
    return {"SOFTGPU_DIR": "/gpu", "LD_LIBRARY_PATH": "/opt/softgpu", "LD_PRELOAD": AGENT,
            "SOFTGPU_DEVICES": world.env["SOFTGPU_DEVICES"], "SOFTGPU_MEMORY": world.env["SOFTGPU_MEMORY"]}


class Podman(Runc):
    """A store and a state of its own; the machine's containers are not touched."""

    IMAGE = "localhost/workload:1"

    def __init__(self, world):
        super().__init__(world)
        self.folder = world.folder / "podman"
        self.folder.mkdir()
        settings = self.folder / "containers.conf"
        settings.write_text('[engine]\nruntime = "runc"\n')
        self.env["CONTAINERS_CONF"] = str(settings)
        archive = image_archive(self.folder)
        self.podman("import", archive, self.IMAGE)

    def podman(self, *words, code=0, seconds=120):
        last = Command(["podman", "--root", self.folder / "root", "--runroot", self.folder / "runroot", "--tmpdir",
                        self.folder / "tmp", "--storage-driver", "vfs", "--cgroup-manager", "cgroupfs",
                        "--events-backend", "file", *words], self.env, self.world.folder).wait(seconds)
        self.world.log.append(last)
        self.world.reap()
        demand(code is None or (last.code == 0) == (code == 0), lambda: f"podman:\n{last}\n{self.criu_logs()}")
        return last

    def criu_logs(self):
        found = []
        for path in (self.folder / "root").rglob("*.log"):
            lines = [line for line in processes.text_of(path).splitlines() if "Error" in line or "stasis:" in line]
            found += [f"{path.name}: {line}" for line in lines]
        return "\n".join(found)

    def run(self, name, workload, *args, options=()):
        words = ["run", "--detach", "--name", name, "--network", "none", "--ulimit", "nofile=1024:2048",
                 "--ulimit", "nproc=1024:2048", "--annotation", f"org.criu.config={self.config}", *options]
        for source, destination, mode in mounts(self.world):
            words += ["--volume", f"{source}:{destination}:{mode}"]
        for key, value in variables(self.world).items():
            words += ["--env", f"{key}={value}"]
        self.podman(*words, self.IMAGE, f"/opt/w/{workload}", *args)
        self.expect_running(name)

    def text(self, name):
        return self.podman("logs", name, code=None).out

    def expect_running(self, name):
        """It prints two more rounds, and has verified its memory in each."""
        begin = len(re.findall(r"^ROUND ", self.text(name), re.M))
        wait_until(lambda: len(re.findall(r"^ROUND ", self.text(name), re.M)) >= begin + 2, 60,
                   lambda: f"{name} does not run:\n{self.text(name)[-1000:]}\n{self.criu_logs()}")
        demand("FAILED" not in self.text(name), lambda: self.text(name)[-1000:])

    def finish(self, name):
        """Asks it to exit; it verifies all of its memory first."""
        self.expect_running(name)
        self.podman("kill", "--signal", "TERM", name)
        wait_until(lambda: "EXIT-SUCCESS" in self.text(name), 60, lambda: f"{name}: {self.text(name)[-1000:]}")
        self.podman("rm", "--force", "--time", "0", name)

    def close(self):
        self.podman("rm", "--all", "--force", "--time", "0", code=None)
        self.podman("rmi", "--all", "--force", code=None)
        shutil.rmtree(self.folder, ignore_errors=True)
        if os.path.exists("/dev/shm/libpod_lock"):
            os.unlink("/dev/shm/libpod_lock")
