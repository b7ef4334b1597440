"""The steps of containers.sh."""

import argparse
import functools
import json
import os
import pathlib
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time

from fast_path import GIB, SOFT, periodic
from harness import Output, Report, demand, is_alive, run, tail, wait_until
from ride import Machine, sequence_is_whole

HERE = pathlib.Path(__file__).resolve().parent
PLUGIN = pathlib.Path(os.environ.get("CUDA_PLUGIN", HERE.parents[1] / ".cache" / "criu" / "lib"))
LAYERS = os.environ.get("LAYERS", "32")
CACHE = os.environ.get("CACHE_GIB", "20")
TOKENS = 48
SOFTGPU = pathlib.Path(f"/tmp/softgpu-{os.getuid()}")
# Folders of the machine that the container has too, read-only.
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/var")


def mounts_below(folder):
    """Returns the mount points below a folder, the innermost first."""
    lines = pathlib.Path("/proc/self/mounts").read_text().splitlines()
    return sorted((line.split()[1] for line in lines if line.split()[1].startswith(f"{folder}/")), reverse=True)


class Container:
    """A container of runc. Records when each line of its output arrives."""

    def __init__(self, machine, name, command, variables, mounts):
        """`mounts`: (folder, top-level folder in the container, mode)."""
        self.machine, self.name = machine, name
        self.bundle = machine.state / "bundles" / name
        self.output = Output(machine.log(f"{name}.out"))
        self.arrivals = []
        self._write_config(command, variables, mounts)

    def _write_config(self, command, variables, mounts):
        root = self.bundle / "rootfs"
        root.mkdir(parents=True)
        self.runc("spec", "--bundle", self.bundle)
        path = self.bundle / "config.json"
        config = json.loads(path.read_text())
        config["mounts"].append({"destination": "/tmp", "type": "tmpfs", "source": "tmpfs",
                                 "options": ["nosuid", "mode=1777"]})
        for folder in filter(os.path.exists, SYSTEM):
            if os.path.islink(folder):
                (root / folder.strip("/")).symlink_to(os.readlink(folder))
            else:
                mounts = [*mounts, (folder, folder, "ro")]
        for source, destination, mode in mounts:
            (root / destination.strip("/")).mkdir()
            config["mounts"].append({"destination": destination, "type": "bind", "source": str(source),
                                     "options": ["bind", mode]})
        config["root"] = {"path": "rootfs", "readonly": False}
        config["process"].update(terminal=False, rlimits=[], cwd="/", args=[str(word) for word in command],
                                 env=[f"{key}={value}" for key, value in variables.items()])
        # Add the devices that NVIDIA's CDI specification adds.
        devices = [] if SOFT else sorted(p for p in pathlib.Path("/dev").glob("nvidia*") if p.is_char_device())
        config["linux"]["devices"] = [
            {"path": str(p), "type": "c", "major": os.major(p.stat().st_rdev), "minor": os.minor(p.stat().st_rdev),
             "fileMode": stat.S_IMODE(p.stat().st_mode)} for p in devices]
        # CRIU would lock a separate network with iptables.
        spaces = config["linux"]["namespaces"]
        config["linux"]["namespaces"] = [space for space in spaces if space["type"] != "network"]
        config["linux"]["resources"] = {"devices": [{"allow": True, "access": "rwm"}]}
        path.write_text(json.dumps(config))

    def runc(self, *words, timeout_s=60, code=0):
        done = run(["runc", "--root", self.machine.state / "runc", *words], timeout_s,
                   self.machine.log(self.machine.report.step_name), self.machine.env)
        demand(code is None or done.code == code, f"runc {words[0]}: {done.code}\n{tail(done.err, 800)}")
        return done

    def start(self, images=None, timeout_s=120):
        """Starts the container, from a checkpoint if `images` names one. Returns the seconds that the command took."""
        reader, writer = os.pipe()
        threading.Thread(target=self._read, args=(reader,), daemon=True).start()
        verb = ["restore", "--image-path", images, "--work-path", images] if images else ["run"]
        began = time.monotonic()
        process = subprocess.Popen(
            ["runc", "--root", self.machine.state / "runc", *map(str, verb), "--detach", "--bundle", self.bundle,
             self.name], env=self.machine.env, stdin=subprocess.DEVNULL, stdout=writer, stderr=writer)
        os.close(writer)
        code = process.wait(timeout_s)
        seconds = time.monotonic() - began
        if code != 0:
            time.sleep(0.5)  # for the last output
        demand(code == 0, f"runc {verb[0]}: {code}\n{tail(self.output.text(), 800)}\n{errors(images, 'restore')}")
        return seconds

    def _read(self, reader):
        with os.fdopen(reader, "rb") as lines, open(self.output.path, "ab", buffering=0) as log:
            for line in lines:
                if line.startswith(b"ROUND "):
                    self.arrivals.append(time.monotonic())
                log.write(line)

    def wait_rounds(self, more, timeout_s):
        goal = len(self.arrivals) + more

        def there():
            demand(self.output.failure() is None, f"{self.output.failure()}\n{tail(self.output.text(), 800)}")
            return len(self.arrivals) >= goal

        wait_until(there, timeout_s, f"{more} more rounds")

    def longest_gap(self, since):
        """Returns the longest time between two rounds, in seconds."""
        times = [t for t in self.arrivals if t >= since - 1]
        return max((b - a for a, b in zip(times, times[1:])), default=0)

    def pid(self):
        return self.runc("state", self.name).json()["pid"]

    def checkpoint(self, images, *words, timeout_s=200):
        images.mkdir(parents=True)
        done = self.runc("checkpoint", "--image-path", images, "--work-path", images, *words, self.name,
                         timeout_s=timeout_s, code=None)
        shutil.copy(images / "dump.log", self.machine.log(f"{self.name}-{images.name}"))
        demand(done.code == 0, f"runc checkpoint: {done.code}\n{tail(done.err, 400)}\n{errors(images, 'dump')}")
        return done.seconds

    def finish(self):
        pid = self.pid()
        self.runc("kill", self.name, "TERM")
        wait_until(lambda: not is_alive(pid), 60, "the end")
        wait_until(lambda: self.output.has("EXIT-SUCCESS") or self.output.failure(), 10, "EXIT-SUCCESS")
        demand(self.output.has("EXIT-SUCCESS"), tail(self.output.text(), 800))

    def remove(self):
        self.runc("delete", "--force", self.name, code=None)


def errors(images, verb):
    """Returns the errors and the plugin's lines in CRIU's log."""
    log = pathlib.Path(images or "/") / f"{verb}.log"
    if not log.exists():
        return ""
    return "\n".join(line for line in log.read_text(errors="replace").splitlines()
                     if "Error" in line or "stasis:" in line)[-1500:]


def size(folder):
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file() and not p.is_symlink())


class Steps:
    def __init__(self, machine):
        self.machine = machine
        self.images = pathlib.Path(os.environ.get("CRIU_IMAGES_DIR", "/tmp")) / "stasis-container-images"
        shutil.rmtree(self.images, ignore_errors=True)
        machine.env["PATH"] = f"{machine.dist / 'libexec'}:{os.environ['PATH']}"
        machine.env["STASIS_SOCKET"] = str(machine.state / "run" / "stasisd.sock")
        self.plugin_dir = machine.state / "plugin"
        shutil.copytree(machine.dist / "lib" / "stasis" / "criu", self.plugin_dir)
        (self.plugin_dir / "stasis_plugin.socket").write_text(f"{machine.state}/run/criu.sock\n")
        self.scripts = machine.state / "scripts"
        shutil.copytree(HERE, self.scripts)
        self.keeper = None

    def daemon(self, data):
        self.machine.env["STASIS_CRIU_DATA"] = data
        self.machine.stasis(None, "daemon", "start")

    def drain(self):
        """Ends the daemon. Its log has the seconds of each phase."""
        self.machine.stasis(None, "daemon", "drain", expect=None)
        log = self.machine.state / "stasis" / "run" / "stasisd.log"
        if log.exists():
            with open(self.machine.log("stasisd"), "ab") as kept:
                kept.write(log.read_bytes())
            log.unlink()

    def set_up(self):
        """Uses Stasis' own commands. On softgpu a broker must run outside of the containers."""
        self.machine.stasis(None, "container", "setup", "--runtime", "runc", "--plugin-dir", self.plugin_dir)
        checked = self.machine.stasis(None, "container", "check", "--runtime", "runc", "--plugin-dir", self.plugin_dir,
                                      expect=None)
        if SOFT:
            self.keeper = subprocess.Popen([self.machine.workload("counter"), "--port", "0"], env=self.machine.env,
                                           stdout=subprocess.DEVNULL)
            wait_until(SOFTGPU.is_dir, 10, "softgpu's broker")
        folder = self.machine.state / "cdi"
        self.machine.stasis(None, "cdi", "install", "--dir", folder)
        edits = json.loads((folder / "stasis.json").read_text())["devices"][0]["containerEdits"]
        self.agent_folder = edits["mounts"][0]["hostPath"]
        return "\n".join(f"{f['level']}: {f['id']}: {f['found']}" for f in checked.json()["findings"])

    def container(self, name, agent=True):
        """Starts a container with this machine's environment variables, and waits until it has run undisturbed."""
        variables = {key: value for key, value in os.environ.items() if not key.startswith("STASIS_")}
        mounts = [(self.machine.dist, "/dist", "ro"), (self.scripts, "/scripts", "ro")]
        if agent:
            mounts.append((self.agent_folder, "/agent", "ro"))
            variables["LD_PRELOAD"] = "/agent/libstasis-agent.so"
        driver = pathlib.Path("/usr/local/nvidia")
        if driver.is_mount():
            mounts.append((driver, "/nvidia", "ro"))
            variables["LD_LIBRARY_PATH"] = "/nvidia/lib64:/nvidia/lib"
        command = [sys.executable, "/scripts/torch_llama.py", "--layers", LAYERS, "--cache", CACHE, "--tokens", TOKENS]
        if SOFT:
            command = ["/dist/workloads/vector", "--memory", "64M", "--interval", "10"]
            mounts.append((SOFTGPU, "/softgpu", "rw"))
            variables.update(SOFTGPU_DIR="/softgpu", LD_LIBRARY_PATH="/dist/lib/softgpu")
        container = Container(self.machine, name, command, variables, mounts)
        container.start()
        container.wait_rounds(3 if SOFT else 2 * TOKENS + 1, 150)
        container.undisturbed = len(container.arrivals)
        return container

    def verify(self, container):
        """Checks that the container's results are those of an undisturbed run."""
        container.wait_rounds(3 if SOFT else TOKENS, 60)
        container.finish()
        if SOFT:
            sequence_is_whole(container.output)
            return "the rounds are whole"
        return periodic(container.output, TOKENS, container.undisturbed)

    def left_running(self, container, what, bar=None):
        images = self.images / "left-running"
        began = time.monotonic()
        seconds = container.checkpoint(images, "--leave-running")
        container.wait_rounds(5, 60)
        report = self.machine.report
        report.number(f"{what}, left running: command", seconds, "s")
        report.number(f"{what}, left running: pause", container.longest_gap(began), "s", bar)
        shutil.rmtree(images)

    def there_and_back(self, container, what, bars=(None, None)):
        """Ends the container by a checkpoint and restores it from the page cache."""
        report = self.machine.report
        images = self.images / "ended"
        report.number(f"{what}: checkpoint", container.checkpoint(images), "s")
        report.number(f"{what}: CRIU's image folder", size(images) / GIB, "GiB", bars[0])
        container.remove()
        began = time.monotonic()
        before = len(container.arrivals)
        seconds = container.start(images)
        shutil.copy(images / "restore.log", self.machine.log(f"{container.name}-restore"))
        report.number(f"{what}: restore", seconds, "s", bars[1])
        wait_until(lambda: len(container.arrivals) > before, 60, "a round")
        report.number(f"{what}: restore to the next round", container.arrivals[before] - began, "s")
        shutil.rmtree(images)

    def with_stasis(self, data):
        bars = {"pause": ("<=", 2.0), "size": ("<=", 2e9 / GIB), "restore": ("<=", 3.0)} if not SOFT else {}
        self.daemon(data)
        container = None
        try:
            container = self.container(data)
            for turn in ("first", "second"):
                self.left_running(container, f"{data}, {turn}", bars.get("pause"))
            self.there_and_back(container, data, (bars.get("size") if data == "reference" else None, bars.get("restore")))
            return self.verify(container)
        finally:
            self.end(container)
            self.drain()

    def criu_cuda_plugin(self):
        config = pathlib.Path("/etc/criu/default.conf")
        kept = config.read_text()
        tools = self.machine.dist / "libexec" / "compat"
        self.machine.env["PATH"] = f"{tools}:{self.machine.env['PATH']}"
        if SOFT:
            self.machine.env["CRIU_FAULT"] = "138"  # skip the check for a GPU
        config.write_text(f"libdir {PLUGIN}\ntimeout 600\n")
        container = None
        try:
            container = self.container("cuda-plugin", agent=False)
            self.left_running(container, "CRIU's CUDA plugin")
            self.there_and_back(container, "CRIU's CUDA plugin")
            return self.verify(container)
        finally:
            config.write_text(kept)
            self.end(container)

    def end(self, container):
        if container:
            container.remove()
        shutil.rmtree(self.images, ignore_errors=True)
        shutil.rmtree(self.machine.state / "stasis" / "data" / "images", ignore_errors=True)

    def close(self):
        self.machine.stasis(None, "container", "remove", "--plugin-dir", self.plugin_dir, expect=None)
        if self.keeper:
            self.keeper.send_signal(signal.SIGKILL)
            self.keeper.wait()
        shutil.rmtree(self.images, ignore_errors=True)
        # runc can leave mounts of the machine's folders behind. Nothing may be deleted through them.
        bundles = self.machine.state / "bundles"
        for point in mounts_below(bundles):
            run(["umount", "--lazy", point], 10)
        demand(not mounts_below(bundles), f"mounted: {mounts_below(bundles)}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("dist")
    parser.add_argument("out")
    parser.add_argument("steps", nargs="*")
    options = parser.parse_args()
    report = Report(options.out, float(os.environ.get("BUDGET_S", "500")), "containers")
    machine = Machine(options.dist, report, SOFT)
    steps = Steps(machine)
    for name, limit, function in (("set up", 60, steps.set_up),
                                  ("embedded", 220, functools.partial(steps.with_stasis, "embedded")),
                                  ("reference", 220, functools.partial(steps.with_stasis, "reference")),
                                  ("CRIU's CUDA plugin", 300, steps.criu_cuda_plugin)):
        if not options.steps or name == "set up" or any(name.startswith(step) for step in options.steps):
            report.step(name, limit, function)
    steps.close()
    machine.clean()
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
