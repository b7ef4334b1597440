"""CRIU with our plugin and a daemon, in the set-up that a container runtime uses."""

import os
import shutil

import processes
from processes import wait_until
from programs import Program
from world import Command, demand

KILLED = -9


class Plugin:
    def __init__(self, world):
        self.world = world
        self.folder = world.folder / "criu-plugins"
        shutil.copytree(world.build / "lib" / "stasis" / "criu", self.folder)
        self.socket = world.folder / "run" / "stasisd.sock"
        (self.folder / "stasis_plugin.socket").write_text(f"{self.socket.parent}/criu.sock\n")
        self.criu = world.build / "libexec" / "criu"
        self.env = {**world.env, "STASIS_SOCKET": str(self.socket)}
        self.images = 0

    def start_daemon(self, env=None):
        self.world.stasis("daemon", "start", env={**self.env, **(env or {})})

    def end_daemon(self):
        self.world.stasis("daemon", "drain", env=self.env)
        self.world.await_daemons_end()

    def image_folder(self):
        self.images += 1
        folder = self.world.folder / f"criu-image-{self.images}"
        folder.mkdir()
        return folder

    def begin(self, verb, folder, *words, plugin=True):
        """Starts CRIU, which must not see the environment variables of the program."""
        env = {"PATH": os.environ["PATH"], "CRIU_LIBS_DIR": str(self.folder) if plugin else "/proc/self/task"}
        command = Command([self.criu, verb, "--no-default-config", "-v4", "-o", f"{verb}.log", "-D", folder,
                           "--shell-job", *words], env, self.world.folder)
        self.world.log.append(command)
        return command

    def log_of(self, verb, folder):
        text = processes.text_of(folder / f"{verb}.log")
        return "\n".join(line for line in text.splitlines() if "Error" in line or "stasis:" in line or "Warn" in line)

    def criu_run(self, verb, folder, *words, code=0, plugin=True):
        command = self.begin(verb, folder, *words, plugin=plugin).wait()
        self.world.reap()
        demand((command.code == 0) == (code == 0), lambda: f"{command}\n{self.log_of(verb, folder)}")
        return command

    def dump(self, program, *words, folder=None, code=0, **more):
        folder = folder or self.image_folder()
        self.criu_run("dump", folder, "-t", program.pid, *words, code=code, **more)
        if code == 0 and "-R" not in words:
            program.await_gone()
        return folder

    def restore(self, program, folder, *words, code=0, **more):
        self.criu_run("restore", folder, "-d", *words, code=code, **more)
        if code == 0:
            program.child = None  # the test environment reaps it now

    def spawn(self, name, workload="vector", *args, agent=True):
        """Starts a program without a job."""
        agents = {"LD_PRELOAD": str(self.world.build / "lib" / "libstasis-agent.so")} if agent else {}
        self.world.stasis("gpu", "ls")
        return Program(self.world, name, workload, args or ("--memory", "24M", "--interval", "10")).spawn(env=agents)

    def await_idle(self):
        """Waits until the daemon holds no program any more."""
        def idle():
            self.world.reap()
            return not self.world.named("stasis-worker")
        wait_until(idle, 60, "a worker does not end")
