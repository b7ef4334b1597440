"""Containers of containerd: a daemon, a root and a socket of its own."""

import os
import re
import shutil
import subprocess

import podman
import processes
from processes import wait_until
from runc import SYSTEM, Runc, agent_folder
from world import Command, demand


def missing():
    """Returns why containerd cannot be tested here; empty if it can."""
    for program in ("containerd", "ctr", "runc"):
        if not shutil.which(program):
            return f"{program} is not installed"
    return ""


class Containerd(Runc):
    IMAGE = "localhost/workload:1"

    def __init__(self, world):
        super().__init__(world)
        self.folder = world.folder / "containerd"
        self.folder.mkdir()
        self.socket = self.folder / "sock"
        settings = self.folder / "config.toml"
        settings.write_text(
            f'version = 2\nroot = "{self.folder}/root"\nstate = "{self.folder}/state"\n'
            'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
            f'[grpc]\n  address = "{self.socket}"\n[ttrpc]\n  address = "{self.socket}.ttrpc"\n')
        log = open(self.folder / "log", "wb")
        self.server = subprocess.Popen(["containerd", "--config", settings], env=self.env, stdin=subprocess.DEVNULL,
                                       stdout=log, stderr=log)
        world.own(self.server.pid)
        wait_until(lambda: self.socket.exists() and self.ctr("version", code=None).code == 0, 60,
                   lambda: f"containerd does not start:\n{processes.text_of(self.folder / 'log')[-2000:]}")
        archive = podman.image_archive(self.folder)
        self.ctr("images", "import", archive)
        self.tasks = {}

    def ctr(self, *words, code=0, seconds=120):
        last = Command(["ctr", "--address", self.socket, *words], self.env, self.world.folder).wait(seconds)
        self.world.log.append(last)
        self.world.reap()
        demand(code is None or (last.code == 0) == (code == 0),
               lambda: f"ctr:\n{last}\n{processes.text_of(self.folder / 'log')[-3000:]}")
        return last
