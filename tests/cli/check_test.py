#!/usr/bin/env python3
"""`stasis check`: provokes each finding, and compares the findings for a target with the errors of
a dump."""
import contextlib
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "stage"))
import isolate  # noqa: E402
import one_world  # noqa: E402
import processes  # noqa: E402
from processes import wait_until  # noqa: E402
from programs import Program  # noqa: E402
from world import Failed, demand  # noqa: E402

NOBODY = 65534


class Looked:
    def __init__(self, command):
        self.command = command
        self.document = command.json()
        self.findings = self.document["findings"]
        able = all(f["level"] != "cannot" for f in self.findings)
        demand(self.document["ok"] == able and command.code == (0 if able else 5), f"exit code and findings: {command}")

    def of(self, name):
        return [f for f in self.findings if f["id"] == name]

    def expect(self, name, level, *texts):
        found = [f for f in self.of(name) if f["level"] == level and all(t in f["found"] for t in texts)]
        demand(found, f"{name} is not {level} with {texts}: {self.of(name)}")
        if level in ("warning", "cannot"):
            demand(found[0]["meaning"] and found[0]["fix"], f"without meaning or fix: {found[0]}")
        demand(level != "cannot" or found[0]["stops"], f"it stops nothing: {found[0]}")
        return found[0]


def look(world, *args, expect=(0, 5), **more):
    return Looked(world.stasis("check", "--json", *args, expect=expect, **more))


@contextlib.contextmanager
def small_disk(world, name, size):
    folder = world.folder / name
    folder.mkdir()
    isolate.mount("none", str(folder), "tmpfs", data=f"size={size},mode=0700")
    try:
        yield folder
    finally:
        isolate.unmount(str(folder))


# ---- the machine


def this_machine(world):
    able = look(world, expect=0)
    for name in ("installation", "kernel", "criu", "privileges", "chosen-pid", "ptrace", "criu-check", "driver-can",
                 "gpus", "gpu-memory-free", "run-folder", "image-store", "agent"):
        able.expect(name, "ok")
    able.expect("driver", "note", "softgpu", "CUDA 13.0")
    demand(not able.of("mover") and not able.of("disk-speed"), "these are for --full")
    full = look(world, "--full", expect=0)
    full.expect("mover", "ok", "GPU 0: started in ")
    full.expect("agent", "ok", "which answers: ")
    demand("MB/s written and synced" in full.of("disk-speed")[0]["found"], str(full.of("disk-speed")))
    text = world.stasis("check").out
    demand("ok       criu " in text and text.endswith("This machine can checkpoint programs.\n"), text)


def limits(world):
    def few():
        import resource
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))

    look(world, expect=0, preexec_fn=few).expect("memlock", "note", "64 KiB")
    with small_disk(world, "images", "16m") as folder:
        look(world, "--full", env={"STASIS_IMAGE_DIR": str(folder)}, expect=5).expect("image-store", "cannot", str(folder))
        look(world, "--full", env={"STASIS_IMAGE_DIR": str(folder)}).expect("disk-speed", "warning", "too little")
        demand(not list(folder.iterdir()), "something was left in the store")
    for size, level in (("8m", "warning"), ("900k", "cannot")):
        with small_disk(world, f"state{size}", size) as folder:
            # Create only this folder, because a copy of the agent's library would fill the disk.
            (folder / "run").mkdir(mode=0o700)
            look(world, env={"STASIS_STATE_DIR": str(folder)}).expect("run-folder", level, str(folder))
    meminfo = world.folder / "meminfo"
    meminfo.write_text("MemTotal: 4096 kB\nMemAvailable: 2048 kB\n")
    isolate.mount(str(meminfo), "/proc/meminfo", flags=isolate.MS_BIND)
    try:
        look(world).expect("host-memory", "note", "2 MiB available")
    finally:
        isolate.unmount("/proc/meminfo")


def drivers(world):
    def of(version):
        return look(world, env={"SOFTGPU_CUDA_VERSION": version})

    of("12080").expect("driver-can", "warning", "--gpu-map does not work with drivers before 580")
    old = of("12040")
    old.expect("driver", "cannot", "CUDA 12.4", "cuda-checkpoint program")
    demand(not old.of("driver-can"), "what can a driver do that cannot")
    of("12020").expect("driver", "cannot", "cannot save GPU state")
    gone = look(world, env={"STASIS_CUDA_LIBRARY": "/nonexistent/libcuda.so"}, expect=5)
    gone.expect("driver", "cannot", "/nonexistent/libcuda.so")
    gone.expect("agent", "note", "no CUDA driver")
    # A hung driver is queried only once.
    hung = look(world, "--timeout", "1", env={"SOFTGPU_FAULT": "cuInit=hang"}, expect=5)
    hung.expect("driver", "cannot", "1 s" if "1 s" in hung.of("driver")[0]["found"] else "")
    demand(not hung.of("gpus") and not hung.of("agent"), "it was asked again")
    small = {"SOFTGPU_DIR": str(world.folder / "small"), "SOFTGPU_MEMORY": "128M"}
    look(world, env=small, expect=0).expect("gpu-memory-free", "warning", "GPU 0: 128 MiB free")


def parts(world):
    look(world, env={"STASIS_CRIU": "/nonexistent/criu"}, expect=5).expect("criu", "cannot", "/nonexistent/criu")
    library = next((world.state / "data" / "agents").glob("*/libstasis-agent.so"))
    content = library.read_bytes()
    library.write_bytes(content[:-1])
    try:
        look(world, expect=5).expect("agent", "cannot", str(library))
    finally:
        library.write_bytes(content)
    look(world, "--full", env={"SOFTGPU_FAULT": "cuDevicePrimaryCtxRetain=fail(2)"}).expect("agent", "note", "CUDA error 2")


def as_another_user(world):
    home = world.folder / "home"
    home.mkdir()
    os.chown(home, NOBODY, NOBODY)
    world.folder.chmod(0o755)
    env = {"HOME": str(home), "STASIS_STATE_DIR": str(home), "SOFTGPU_DIR": str(home / "gpu")}
    theirs = look(world, env=env, user=NOBODY, group=NOBODY, extra_groups=[])
    fix = theirs.expect("privileges", "cannot")["fix"]
    demand("root" in fix, fix)
    theirs.expect("chosen-pid", "note", "sudo stasis check")
    for name in ("agent", "gpus", "image-store"):
        theirs.expect(name, "ok")
    with subprocess.Popen(["sleep", "1000"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True,
                          user=NOBODY, group=NOBODY, extra_groups=[]) as sleeper:
        world.own(sleeper.pid)
        of_theirs = look(world, sleeper.pid, env=env, user=NOBODY, group=NOBODY, extra_groups=[], expect=5)
        sleeper.kill()
    world.disown(sleeper.pid)
    of_theirs.expect("privileges", "cannot")
    demand(len([f for f in of_theirs.findings if f["level"] == "cannot"]) == 1, f"more than rights: {of_theirs.command}")
    if subprocess.run(["unshare", "-U", "-r", "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0:
        command = world.begin("-U", "-r", str(world.bin / "stasis"), "check", "--json", program="/usr/bin/unshare").wait()
        Looked(command).expect("user-namespace", "warning")


def without_sys_resource(world):
    """In a container root may lack capabilities: a program of another user is rejected before it is
    touched."""
    def begin(*words):
        return world.begin("--bounding-set=-sys_resource", "--inh-caps=-sys_resource", "--", world.bin / "stasis", *words,
                           program="/usr/bin/setpriv", env={"STASIS_FAULT": "image-begin:before:die"}).wait()

    Looked(begin("check", "--json")).expect("resource-limits", "warning", "CAP_SYS_RESOURCE is missing")
    with subprocess.Popen(["sleep", "1000"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True,
                          user=NOBODY, group=NOBODY, extra_groups=[]) as sleeper:
        world.own(sleeper.pid)
        Looked(begin("check", "--json", str(sleeper.pid))).expect("resource-limits", "cannot", "belongs to another user")
        refused = begin("dump", str(sleeper.pid))
        sleeper.kill()
    world.disown(sleeper.pid)
    demand(refused.code == 4 and "CAP_SYS_RESOURCE" in refused.err, f"{refused}")


# ---- a target


class Started:
    """Starts a program that runs until it is killed."""

    def __init__(self, world, words, ready, env=None):
        self.world = world
        self.log = world.folder / "started.log"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen([str(w) for w in words], env={**world.env, **(env or {})}, cwd=world.folder,
                                            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        self.pid = self.process.pid
        world.own(self.pid)
        wait_until(lambda: ready() or self.process.poll() is not None, 60, "it is not ready")
        demand(self.process.poll() is None, lambda: f"{words}: {self.log.read_text()}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pid in processes.tree(self.pid):
            processes.end(pid)
        self.process.wait()
        self.world.disown(self.pid)


def criu_target(world, *roles):
    state = world.folder / f"target-{'-'.join(roles)}"
    return Started(world, [world.build / "tests" / "criu" / "criu_target", state, *roles],
                   lambda: state.exists() and "count" in state.read_text())


def same_as_dump(world, target, name, *options, **more):
    """Every error of a dump is a finding with the same text."""
    found = look(world, target, expect=5, **more)
    error = world.stasis("dump", target, "--json", *options, expect=5, **more).json()["error"]
    same = [f for f in found.findings if f["level"] == "cannot" and
            (f["found"] in error["message"] or error["message"] in f["found"])]
    demand(same, f"the dump says: {error}\ncheck does not: {found.command}")
    demand(same[0]["id"] == name, f"it is called {same[0]['id']}, not {name}: {same[0]}")
    demand(same[0]["stops"], f"it stops nothing: {same[0]}")


# Resources that CRIU cannot save, and the names of their findings.
OBSTACLES = {"io-uring": "io_uring", "userfaultfd": "special-file", "device": "device", "tcp-connect": "tcp",
             "tcp-waiting": "tcp-in-flight", "file-lock": "file-lock", "renamed": "deleted-file",
             "deleted-big": "deleted-file", "vsock": "socket"}


def criu_refusals(world):
    with criu_target(world, "memory") as target:
        look(world, target.pid, expect=0).expect("program", "ok", "processes: 1,")
    for role, name in OBSTACLES.items():
        try:
            target = criu_target(world, role)
        except Failed as error:
            # Some machines lack a device, or forbid userfaultfd in a container.
            print(f"left out: {error}")
            continue
        with target:
            same_as_dump(world, target.pid, name)


def gpu_refusals(world):
    for workload, name in (("iouring", "io_uring"), ("importer", "gpu-memory"), ("managed", "gpu-memory")):
        program = Program(world, workload, workload, ["--interval", "10"])
        program.run()
        if workload == "managed":
            # The driver reports this itself when the program is locked.
            look(world, workload, expect=5).expect(name, "cannot", "managed memory")
            world.stasis("dump", workload, expect=5)
        else:
            same_as_dump(world, workload, name)
        program.kill()
        world.stasis("delete", workload)
    # The processes share memory only with each other, which is no obstacle.
    program = Program(world, "ipc", "ipc", ["--interval", "10"])
    program.run()
    able = look(world, "ipc", expect=0)
    demand(not able.of("left-to-driver"), f"the agents carry it: {able.findings}")
    program.kill()
    world.stasis("delete", "ipc")
    world.agent = False
    program = Program(world, "forker", "forker", ["--interval", "10"])
    program.run()
    same_as_dump(world, "forker", "gpu-files")
    hung = look(world, "forker", "--timeout", "1", env={"SOFTGPU_FAULT": "cuInit=hang"}, expect=5)
    hung.expect("driver", "cannot")
    program.kill()
    world.stasis("delete", "forker")
    program = Program(world, "plain", "vector", ["--interval", "10"])
    program.run()
    look(world, "plain", expect=0).expect("left-to-driver", "note", "no agent in the program")
    with small_disk(world, "full", "4k") as folder:
        env = {"STASIS_IMAGE_DIR": str(folder)}
        look(world, "plain", env=env, expect=5).expect("image-space", "cannot")
        world.stasis("dump", "plain", env=env, expect=1)
    program.kill()
    world.stasis("delete", "plain")
    world.agent = True
    held = HERE.parent / "scenario" / "programs" / "beside_nccl_socket.py"
    with criu_less(world, [sys.executable, held, world.workloads / "vector", "--interval", "10"]) as program:
        same_as_dump(world, program.pid, "gpu-sharing")


def mount_namespaces(world):
    """CRIU would dump a program in another mount namespace, as in a container, but fail to restore
    it."""
    fault = {"STASIS_FAULT": "image-begin:before:die"}
    for options in (["-m"], ["-m", "-p", "-f", "--kill-child", "--mount-proc"]):
        with criu_less(world, ["unshare", *options, "setsid", "-w", world.workloads / "vector", "--interval", "10"]) as program:
            # The last process is the program itself; unshare and setsid may be its ancestors.
            pid = processes.tree(program.pid)[-1]
            same_as_dump(world, pid, "mount-namespace", env=fault)
            world.stasis("suspend", pid)
            world.stasis("resume", pid)


def criu_less(world, words, env=None):
    return Started(world, words, lambda: "READY" in (world.folder / "started.log").read_text(), env)


def disturbed_by_a_pause(world):
    watchdog = pathlib.Path("/dev/watchdog-of-a-test")
    env = {"NOTIFY_SOCKET": "/run/nobody", "WATCHDOG_USEC": "3000000"}
    try:
        with criu_less(world, [sys.executable, HERE / "watched.py", watchdog], env) as program:
            found = look(world, program.pid)
    finally:
        watchdog.unlink(missing_ok=True)
    found.expect("watchdog-device", "warning", str(watchdog))
    found.expect("watchdog-systemd", "warning", "every 3 s")
    found.expect("watchdog-thread", "warning", "pt_nccl_watchdg")
    found.expect("timers", "note", "1 armed timerfds")
    found.expect("inotify", "note", "2 files or folders")
    found.expect("locked-memory", "note", "4 KiB")
    with criu_less(world, [sys.executable, "-c", "import time; print('READY', flush=True); time.sleep(1000)"],
                   {**env, "WATCHDOG_PID": "1"}) as program:
        quiet = look(world, program.pid, expect=0)
    for name in ("watchdog-systemd", "watchdog-thread", "timers", "inotify", "locked-memory"):
        demand(not quiet.of(name), f"{quiet.of(name)}")


def run(world):
    for case in (this_machine, limits, drivers, parts, as_another_user, without_sys_resource, criu_refusals,
                 gpu_refusals, mount_namespaces, disturbed_by_a_pause):
        case(world)


if __name__ == "__main__":
    sys.exit(one_world.main(run))
