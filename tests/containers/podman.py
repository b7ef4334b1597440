"""Containers of podman, with runc below it, that run workloads on software GPUs."""

import os
import re
import shutil
import subprocess

import processes
from containers import make_root, mounts, program_of, variables
from processes import wait_until
from runc import Runc
from world import Command, demand


def image_archive(folder):
    """Makes a tar file of a root file system."""
    root = make_root(folder / "image")
    archive = folder / "image.tar"
    subprocess.run(["tar", "-C", root, "-cf", archive, "."], check=True)
    return archive


class Podman(Runc):
    """podman with its own storage and state, so that the machine's containers are not touched."""

    IMAGE = "localhost/workload:1"

    def __init__(self, world, configure=True):
        super().__init__(world, configure)
        self.folder = world.folder / "podman"
        self.folder.mkdir()
        storage, settings = self.folder / "storage.conf", self.folder / "containers.conf"
        storage.write_text(f'[storage]\ndriver = "vfs"\ngraphroot = "{self.folder}/root"\n'
                           f'runroot = "{self.folder}/runroot"\n')
        settings.write_text('[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
                            f'tmp_dir = "{self.folder}/tmp"\n')
        # Files instead of options, because Stasis runs podman without options.
        self.settings = {"CONTAINERS_CONF": str(settings), "CONTAINERS_STORAGE_CONF": str(storage)}
        self.env.update(self.settings)
        self.podman("import", image_archive(self.folder), self.IMAGE)

    def podman(self, *words, code=0, seconds=120):
        last = Command(["podman", *words], self.env, self.world.folder).wait(seconds)
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

    def start(self, name, workload, *args, options=(), agent=True, edits=({}, [])):
        words = ["run", "--detach", "--name", name, "--network", "none", "--ulimit", "nofile=1024:2048",
                 "--ulimit", "nproc=1024:2048", *options]
        for key, value in self.annotations.items():
            words += ["--annotation", f"{key}={value}"]
        for source, destination, mode in [*mounts(self.world, agent), *edits[1]]:
            words += ["--volume", f"{source}:{destination}:{mode}"]
        for key, value in {**variables(self.world, agent), **edits[0]}.items():
            words += ["--env", f"{key}={value}"]
        self.podman(*words, self.IMAGE, program_of(workload), *args)

    def run(self, name, workload, *args, **more):
        self.start(name, workload, *args, **more)
        self.expect_running(name)

    def pid(self, name):
        return int(self.podman("inspect", "--format", "{{.State.Pid}}", name).out)

    def text(self, name):
        return self.podman("logs", name, code=None).out

    def expect_running(self, name):
        """Waits until the container has printed two more rounds. It has then verified its memory in each."""
        begin = len(re.findall(r"^ROUND ", self.text(name), re.M))
        wait_until(lambda: len(re.findall(r"^ROUND ", self.text(name), re.M)) >= begin + 2, 60,
                   lambda: f"{name} does not run:\n{self.text(name)[-1000:]}\n{self.criu_logs()}")
        demand("FAILED" not in self.text(name), lambda: self.text(name)[-1000:])

    def finish(self, name):
        """Asks the container's program to exit. It verifies all of its memory first."""
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
