"""Containers of runc that run workloads on software GPUs, checkpointed by CRIU with our plugin."""

import contextlib
import json
import os
import pathlib
import re
import stat
import subprocess

import isolate
import processes
from containers import make_root, mounts, program_of, variables
from plugin import Plugin
from processes import wait_until
from world import Command, demand


class Runc:
    def __init__(self, world, configure=True, program="runc"):
        """`configure`: containers name a CRIU configuration that loads the plugin. Otherwise CRIU reads its default
        configuration."""
        self.world, self.program = world, program
        self.plugin = Plugin(world)
        self.root = world.folder / "runc"
        self.annotations = {}
        if configure:
            config = world.folder / "criu.conf"
            config.write_text(f"libdir {self.plugin.folder}\n")
            self.annotations["org.criu.config"] = str(config)
        # runc starts the first `criu` of PATH.
        self.env = {**world.env, "PATH": f"{world.build}/libexec:{os.environ['PATH']}"}
        self.env.pop("LD_LIBRARY_PATH")
        self.containers = []
        self.keeper = None

    def keep_broker(self):
        """Keeps a client, because softgpu's broker ends with its last client and a container could not start it."""
        self.keeper = subprocess.Popen([self.world.workloads / "counter", "--port", "0"], env=self.world.env,
                                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL)
        self.world.own(self.keeper.pid)
        wait_until(lambda: (self.world.gpu_folder / "broker").exists() or any(self.world.gpu_folder.iterdir())
                   if self.world.gpu_folder.is_dir() else False, 30, "the broker does not start")

    def end_broker(self):
        self.keeper.kill()
        self.keeper.wait()
        self.world.disown(self.keeper.pid)

    def replace_gpus(self, first, devices):
        """Gives the machine other GPUs. `first` is the number in the UUID of the first one."""
        self.end_broker()
        wait_until(lambda: self.world.reap() or not self.world.named("softgpu-broker"), 30, "the broker does not end")
        self.world.env["SOFTGPU_FIRST"] = str(first)
        self.world.set_gpu(devices, "1G")
        self.keep_broker()
        self.world.stasis("gpu", "ls")

    def begin(self, *words):
        command = Command([self.program, "--root", self.root, *words], self.env, self.world.folder)
        self.world.log.append(command)
        return command

    def runc(self, *words, code=0, seconds=90):
        last = self.begin(*words).wait(seconds)
        self.world.reap()
        demand(code is None or (last.code == 0) == (code == 0), lambda: f"runc:\n{last}")
        return last


@contextlib.contextmanager
def own_devices(world, nodes):
    """Gives the test a /dev of its own with these nodes of NVIDIA's driver: name -> (major, minor). /dev/nvidiaN is GPU
    N of softgpu."""
    folder = world.folder / "dev"
    folder.mkdir()
    isolate.mount("tmpfs", str(folder), "tmpfs")
    subprocess.run(["cp", "-ax", "/dev/.", folder], check=True)
    for name in ("pts", "shm", "mqueue"):
        if os.path.ismount(f"/dev/{name}"):
            isolate.mount(f"/dev/{name}", str(folder / name), flags=isolate.MS_BIND)
    isolate.mount(str(folder), "/dev", flags=isolate.MS_BIND | isolate.MS_REC)
    isolate.mount("tmpfs", "/proc/driver", "tmpfs")
    for name, (major, minor) in nodes.items():
        os.mknod(f"/dev/{name}", stat.S_IFCHR | 0o666, os.makedev(major, minor))
        if name[6:].isdigit():
            gpu = pathlib.Path(f"/proc/driver/nvidia/gpus/{minor}")
            gpu.mkdir(parents=True)
            (gpu / "information").write_text(f"GPU UUID: \t GPU-536f6674-4750-5500-0000-{minor:012x}\n"
                                             f"Device Minor: \t {minor}\n")
    try:
        yield
    finally:
        for path in ("/proc/driver", "/dev", folder):
            subprocess.run(["umount", "-R", "-l", path], check=True)
        folder.rmdir()


class Container:
    def __init__(self, runc, name, workload, *args, agent=True, edits=({}, []), network="own"):
        """`edits`: additional environment variables and mounts, those of a CDI device. `network`: "own" or "host"."""
        self.runc, self.world, self.name = runc, runc.world, name
        self.bundle = runc.world.folder / f"bundle-{name}"
        self.log = self.bundle / "log"
        make_root(self.bundle / "rootfs")
        runc.containers.append(self)
        self._write_config([program_of(workload), *map(str, args)], agent, edits, network)

    def _write_config(self, words, agent, edits, network):
        world = self.world
        self.runc.runc("spec", "--bundle", self.bundle)
        path = self.bundle / "config.json"
        config = json.loads(path.read_text())
        config["root"]["readonly"] = False
        config["process"]["terminal"] = False
        config["process"]["rlimits"] = []
        config["process"]["args"] = words
        environment = {"PATH": "/usr/bin:/bin", **variables(world, agent), **edits[0]}
        config["process"]["env"] = [f"{key}={value}" for key, value in environment.items()]
        for source, destination, mode in [*mounts(world, agent), *edits[1]]:
            config["mounts"].append({"destination": str(destination), "type": "bind", "source": str(source),
                                     "options": ["bind", mode]})
        # By default a container's control group is named after its id only, so concurrent tests would share it.
        config["linux"]["cgroupsPath"] = f"/{world.folder.name}-{self.name}"
        config["linux"]["resources"] = {"devices": [{"allow": False, "access": "rwm"}]}
        if network == "host":
            config["linux"]["namespaces"] = [n for n in config["linux"]["namespaces"] if n["type"] != "network"]
        config["annotations"] = self.runc.annotations
        path.write_text(json.dumps(config))

    # The container's output goes through a pipe, because CRIU restores no file outside of the container.

    def _begin(self, *words):
        """Returns the running command, whose own messages go to a file, and the reader of the container's output."""
        reader, writer = os.pipe()
        with open(self.log, "ab") as log:
            pump = subprocess.Popen(["cat"], stdin=reader, stdout=log)
        self.world.own(pump.pid)
        os.close(reader)
        self.messages = self.world.folder / "tmp" / f"runc-{self.name}.log"
        command = subprocess.Popen([self.runc.program, "--root", self.runc.root, "--log", self.messages,
                                    *map(str, words)], env=self.runc.env, cwd=self.world.folder,
                                   stdin=subprocess.DEVNULL, stdout=writer, stderr=writer)
        self.world.own(command.pid)
        os.close(writer)
        return command, pump

    def _start(self, *words):
        command, self.pump = self._begin(*words)
        code = command.wait(90)
        self.world.disown(command.pid)
        text = processes.text_of(self.messages)
        self.messages.unlink(missing_ok=True)
        return code, text

    def begin_restore(self, images):
        command, self.pump = self._begin("restore", "--detach", "--bundle", self.bundle, "--image-path", images,
                                         "--work-path", images, self.name)
        return command

    def start(self):
        code, text = self._start("run", "--detach", "--bundle", self.bundle, self.name)
        demand(code == 0, lambda: f"runc run: {text}\n{self.text()}")
        return self

    def run(self):
        self.start().expect_running()
        return self

    def set_devices(self, **devices):
        """Gives the container these devices of NVIDIA's driver, name -> (major, minor), and allows no others."""
        path = self.bundle / "config.json"
        config = json.loads(path.read_text())
        nodes = [(f"/dev/{name.replace('_', '-')}", *number) for name, number in devices.items()]
        config["linux"]["devices"] = [{"path": name, "type": "c", "major": major, "minor": minor, "fileMode": 0o640}
                                      for name, major, minor in nodes]
        config["linux"]["resources"]["devices"] = [{"allow": False, "access": "rwm"}] + [
            {"allow": True, "type": "c", "major": major, "minor": minor, "access": "rw"} for _, major, minor in nodes]
        path.write_text(json.dumps(config))

    def text(self):
        return processes.text_of(self.log)

    def expect_running(self):
        """Waits until the container has printed two more rounds. It has then verified its memory in each."""
        begin = len(re.findall(r"^ROUND ", self.text(), re.M))
        wait_until(lambda: len(re.findall(r"^ROUND ", self.text(), re.M)) >= begin + 2, 60,
                   lambda: f"{self.name} does not run: {self.state()}\n{self.text()[-1000:]}")
        demand("FAILED" not in self.text(), lambda: self.text()[-1000:])

    def state(self):
        last = self.runc.runc("state", self.name, code=None)
        return last.json() if last.code == 0 else {"status": "absent", "pid": 0}

    @property
    def pid(self):
        return self.state()["pid"]

    def checkpoint(self, *words, images, code=0):
        last = self.runc.runc("checkpoint", "--image-path", images, "--work-path", images, *words, self.name, code=None)
        demand((last.code == 0) == (code == 0), lambda: f"{last}\n{self.criu_log('dump', images)}")
        return last

    def restore(self, images, *words, code=0):
        got, text = self._start("restore", "--detach", "--bundle", self.bundle, "--image-path", images,
                                "--work-path", images, *words, self.name)
        demand((got == 0) == (code == 0), lambda: f"runc restore: {got} {text}\n{self.criu_log('restore', images)}")
        return text

    def criu_log(self, verb, images):
        lines = processes.text_of(images / f"{verb}.log").splitlines()
        return "\n".join(line for line in lines if "Error" in line or "stasis:" in line)

    def finish(self):
        """Asks the container's program to exit. It verifies all of its memory first."""
        self.expect_running()
        self.runc.runc("kill", self.name, "TERM")
        wait_until(lambda: "EXIT-SUCCESS" in self.text(), 60, lambda: f"{self.name}: {self.text()[-1000:]}")
        self.remove()

    def kill(self):
        self.runc.runc("delete", "--force", self.name)
        self.remove()

    def await_stopped(self):
        wait_until(lambda: self.world.reap() or self.state()["status"] in ("stopped", "absent"), 60,
                   f"{self.name} does not stop")

    def remove(self):
        self.await_stopped()
        self.runc.runc("delete", "--force", self.name, code=None)
        self.pump.wait()
        self.world.disown(self.pump.pid)
