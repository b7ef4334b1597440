"""Containers of the machine's runc and podman, with folders of the test's own for their state.

The root file system has nothing but the machine's programs and libraries, read-only. GPU programs get softgpu, the agent and the
workloads by bind mounts, at the same paths as outside.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import threading

import isolate
from processes import wait_until
from world import demand

LINKS = {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64", "sbin": "usr/sbin"}
# Not all of /usr: the agent's folder is mounted below it.
SHARED = [("/usr/bin", "/usr/bin"), (f"/usr/lib/{os.uname().machine}-linux-gnu",) * 2, ("/usr/lib64", "/usr/lib64")]
START_S = 60


def skip_without(*programs):
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        print(f"SKIPPED: there is no {', '.join(missing)} on PATH")
        sys.exit(isolate.SKIPPED)


def make_root(folder):
    for name in ("usr", "proc", "dev", "sys", "tmp"):
        (folder / name).mkdir(parents=True)
    for name, target in LINKS.items():
        (folder / name).symlink_to(target)
    return folder


class Containers:
    def __init__(self, world):
        self.world = world
        self.folder = world.folder / "containers"
        self.folder.mkdir()
        # The CRIU of this build, where the runtimes find it.
        path = self.folder / "bin"
        path.mkdir()
        criu = world.build / "libexec" / "criu"
        if criu.exists():
            (path / "criu").symlink_to(criu.resolve())
        world.env["PATH"] = f"{path}:{world.env['PATH']}"
        self.runc_root = self.folder / "runc"
        # Runtimes keep locks and sockets here, and CRIU and CDI their configuration.
        self._mounted = []
        for name in ("/run", "/etc/criu", "/etc/cdi", "/var/lib/containers"):
            if os.path.isdir(name):
                isolate.mount("none", name, "tmpfs", data="mode=0755")
                self._mounted.append(name)
        world._mounts = isolate.mounts()
        self.library = None

    def close(self):
        for name in reversed(self._mounted):
            subprocess.run(["umount", "-l", name], check=True)
        self.world._mounts = isolate.mounts()

    def specification(self):
        """Returns (variables, [(source, target)]) of the CDI device."""
        folder = self.folder / "cdi"
        self.world.stasis("cdi", "install", "--dir", folder)
        edits = json.loads((folder / "stasis.json").read_text())["devices"][0]["containerEdits"]
        return edits["env"], [(mount["hostPath"], mount["containerPath"]) for mount in edits["mounts"]]

    def gpu(self):
        """Returns (variables, mounts) of a GPU program under the agent."""
        env, mounts = self.specification()
        world = self.world
        names = ("LD_LIBRARY_PATH", "SOFTGPU_DIR", "SOFTGPU_DEVICES", "SOFTGPU_MEMORY")
        env = [*env, *(f"{name}={world.env[name]}" for name in names)]
        for path in (world.build / "lib" / "softgpu", world.workloads, world.gpu_folder):
            mounts = [*mounts, (str(path), str(path))]
        return env, mounts

    def run_silently(self, *words):
        """For a command that leaves a program behind, which would hold pipes."""
        subprocess.run([str(word) for word in words], env=self.world.env, check=True, timeout=120,
                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def run_words(self, *words, expect=0, **more):
        done = subprocess.run([str(word) for word in words], env=self.world.env, text=True, capture_output=True,
                              timeout=120, check=False, stdin=subprocess.DEVNULL, **more)
        demand(expect is None or done.returncode == expect,
               lambda: f"{' '.join(map(str, words))}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done


class Runc:
    """A container of runc, whose output is a pipe: CRIU saves no other output."""

    def __init__(self, containers, name, words, env=(), mounts=()):
        self.containers, self.name = containers, name
        self.bundle = containers.folder / f"bundle-{name}"
        make_root(self.bundle / "rootfs")
        self._runc("spec", "--bundle", self.bundle)
        config = json.loads((self.bundle / "config.json").read_text())
        config["process"].update(terminal=False, args=[str(word) for word in words])
        config["process"].pop("rlimits", None)
        config["process"]["env"] += env
        config["root"]["readonly"] = False
        for source, target in [*SHARED, *mounts]:
            config["mounts"].append({"destination": target, "type": "bind", "source": source,
                                     "options": ["rbind", "rw" if "gpu" in source else "ro"]})
        (self.bundle / "config.json").write_text(json.dumps(config))
        read_end, write_end = os.pipe()
        self.output = ""
        done = subprocess.run(["runc", "--root", containers.runc_root, "run", "--detach", "--bundle", self.bundle, name],
                              env=containers.world.env, stdin=subprocess.DEVNULL, stdout=write_end, stderr=write_end,
                              timeout=120, check=False)
        os.close(write_end)
        threading.Thread(target=self._read, args=(read_end,), daemon=True).start()
        demand(done.returncode == 0, lambda: f"runc run: {self.output}")

    def _runc(self, *words, **more):
        return self.containers.run_words("runc", "--root", self.containers.runc_root, *words, **more)

    def _read(self, fd):
        while chunk := os.read(fd, 65536):
            self.output += chunk.decode(errors="replace")
        os.close(fd)

    def rounds(self):
        return len(re.findall(r"^ROUND ", self.output, re.M))

    def expect_working(self):
        before = self.rounds()
        wait_until(lambda: self.rounds() > before + 1, START_S, f"{self.name} does not work:\n{self.output[-400:]}")
        demand("FAILED" not in self.output, self.output[-400:])

    def pid(self):
        return json.loads(self._runc("state", self.name).stdout)["pid"]

    def delete(self):
        self._runc("delete", "--force", self.name, expect=None)


class Podman:
    """podman with storage of the test's own."""

    LIMITS = ("--ulimit", "nofile=1024:2048", "--ulimit", "nproc=1024:2048")

    def __init__(self, containers):
        self.containers = containers
        folder = containers.folder / "podman"
        folder.mkdir()
        (folder / "storage.conf").write_text(
            f'[storage]\ndriver = "vfs"\ngraphroot = "{folder}/graph"\nrunroot = "{folder}/run"\n')
        (folder / "containers.conf").write_text(
            '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "none"\n'
            f'tmp_dir = "{folder}/tmp"\n')
        containers.world.env.update(CONTAINERS_STORAGE_CONF=str(folder / "storage.conf"),
                                    CONTAINERS_CONF=str(folder / "containers.conf"))
        root = make_root(folder / "root")
        containers.run_words("tar", "-C", root, "-cf", folder / "root.tar", ".")
        self("import", folder / "root.tar", "localhost/test:1")

    def __call__(self, *words, expect=0):
        return self.containers.run_words("podman", *words, expect=expect).stdout

    def run(self, name, words, env=(), mounts=()):
        options = []
        for source, target in [*SHARED, *mounts]:
            options += ["-v", f"{source}:{target}:{'rw' if 'gpu' in source else 'ro'}"]
        for variable in env:
            options += ["-e", variable]
        self("run", "--detach", "--name", name, "--network", "none", *self.LIMITS, *options, "localhost/test:1", *words)

    def rounds(self, name):
        return len(re.findall(r"^ROUND ", self("logs", name), re.M))

    def expect_working(self, name):
        before = self.rounds(name)
        wait_until(lambda: self.rounds(name) > before + 1, START_S, f"{name} does not work")

    def pid(self, name):
        return int(self("inspect", "--format", "{{.State.Pid}}", name))


def state_of(listed, target):
    found = [one for one in listed["containers"] if one["target"] == target]
    demand(len(found) == 1, f"{target}: {listed}")
    return found[0]


