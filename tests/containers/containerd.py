"""Containers of containerd that run workloads on software GPUs: a daemon, a root and a socket of its own."""

import hashlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import tarfile

import processes
from containers import mounts, variables
from podman import image_archive
from processes import wait_until
from runc import Runc
from world import Command, demand


def oci_archive(layer, name, path):
    """Wraps the tar file of a root file system as an OCI image."""
    blobs = {}

    def blob(data, kind):
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = data
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(data)}

    data = layer.read_bytes()
    layers = [blob(data, "layer.v1.tar")]
    config = blob(json.dumps({"architecture": "arm64" if platform.machine() == "aarch64" else "amd64", "os": "linux", "config": {},
                              "rootfs": {"type": "layers", "diff_ids": [layers[0]["digest"]]}}).encode(),
                  "config.v1+json")
    manifest = blob(json.dumps({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
                                "config": config, "layers": layers}).encode(), "manifest.v1+json")
    manifest["annotations"] = {"io.containerd.image.name": name}
    files = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
             "index.json": json.dumps({"schemaVersion": 2, "manifests": [manifest]}).encode(), **blobs}
    with tarfile.open(path, "w") as archive:
        for member, content in files.items():
            info = tarfile.TarInfo(member)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


class Containerd(Runc):
    IMAGE = "localhost/workload:1"

    def __init__(self, world):
        super().__init__(world)
        self.folder = world.folder / "containerd"
        self.output = self.folder / "output"
        self.output.mkdir(parents=True)
        self.socket = self.folder / "sock"
        # containerd's shims always keep runc's state in /run/containerd/runc/NAMESPACE. containerd rejects a name such
        # as "world-a__b_", which mkdtemp may return.
        self.namespace = world.folder.name.replace("_", "0")
        self.env["CONTAINERD_NAMESPACE"] = self.namespace
        settings = self.folder / "config.toml"
        settings.write_text(
            f'version = 2\nroot = "{self.folder}/root"\nstate = "{self.folder}/state"\n'
            'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
            f'[grpc]\n  address = "{self.socket}"\n')
        with open(self.folder / "log", "wb") as log:
            self.server = subprocess.Popen(["containerd", "--config", settings], env=self.env, stdin=subprocess.DEVNULL,
                                           stdout=log, stderr=log)
        world.own(self.server.pid)
        wait_until(lambda: self.socket.exists() and self.ctr("version", code=None).code == 0, 60,
                   lambda: f"containerd does not start:\n{processes.text_of(self.folder / 'log')[-2000:]}")
        archive = oci_archive(image_archive(self.folder), self.IMAGE, self.folder / "oci.tar")
        self.ctr("images", "import", "--snapshotter", "native", archive)
        self.pumps = {}

    def ctr(self, *words, code=0, seconds=120):
        last = Command(["ctr", "--address", self.socket, *words], self.env, self.world.folder).wait(seconds)
        self.world.log.append(last)
        self.world.reap()
        demand(code is None or (last.code == 0) == (code == 0),
               lambda: f"ctr:\n{last}\n{processes.text_of(self.folder / 'log')[-3000:]}\n{self.criu_logs()}")
        return last

    def criu_logs(self):
        found = []
        for path in [*self.folder.rglob("*.log"), *(self.folder / "state").rglob("*log*")]:
            found += [f"{path.name}: {line}" for line in processes.text_of(path).splitlines()
                      if "Error" in line or "stasis:" in line]
        return "\n".join(found)

    def run(self, name, workload, *args, agent=True, edits=({}, [])):
        """Runs a container. Its output goes to a named pipe, because a restore requires files of unchanged size.
        `edits`: additional environment variables and mounts, those of a CDI device."""
        pipe = self.output / "pipe"
        os.mkfifo(pipe)
        self.pipe = os.open(pipe, os.O_RDWR)
        with open(self.folder / "text", "wb") as text:
            self.pump = subprocess.Popen(["cat", pipe], stdout=text)
        self.world.own(self.pump.pid)
        words = ["run", "--detach", "--null-io", "--snapshotter", "native", "--cgroup", f"/{self.world.folder.name}-{name}"]
        for key, value in self.annotations.items():
            words += ["--annotation", f"{key}={value}"]
        for source, destination, mode in [*mounts(self.world, agent), (self.output, "/output", "rw"), *edits[1]]:
            words += ["--mount", f"type=bind,src={source},dst={destination},options=rbind:{mode}"]
        for key, value in {**variables(self.world, agent), **edits[0]}.items():
            words += ["--env", f"{key}={value}"]
        line = " ".join(["exec", f"/opt/w/{workload}", *args, ">/output/pipe", "2>&1"])
        self.ctr(*words, self.IMAGE, name, "/bin/sh", "-c", line)
        self.expect_running()

    def text(self):
        return processes.text_of(self.folder / "text")

    def expect_running(self):
        begin = len(re.findall(r"^ROUND ", self.text(), re.M))
        wait_until(lambda: len(re.findall(r"^ROUND ", self.text(), re.M)) >= begin + 2, 60,
                   lambda: f"it does not run:\n{self.text()[-1000:]}\n{self.criu_logs()}")
        demand("FAILED" not in self.text(), lambda: self.text()[-1000:])

    def end(self, name, signal):
        self.ctr("task", "kill", "--signal", signal, name)
        wait_until(lambda: "RUNNING" not in self.ctr("task", "ls").out, 60, f"{name} does not end")
        self.ctr("task", "delete", name, code=None)
        self.ctr("container", "delete", name)

    def close(self):
        for line in self.ctr("task", "ls", "-q", code=None).out.split():
            self.ctr("task", "delete", "--force", line, code=None)
        for line in self.ctr("container", "ls", "-q", code=None).out.split():
            self.ctr("container", "delete", line, code=None)
        self.server.terminate()
        self.server.wait()
        self.world.disown(self.server.pid)
        self.pump.kill()
        self.pump.wait()
        self.world.disown(self.pump.pid)
        os.close(self.pipe)
        shutil.rmtree(self.folder, ignore_errors=True)
