"""Processes that cannot be a target: each is rejected with the reason before anything is touched."""

import ctypes
import os
import subprocess
import sys
import tempfile

from bench import Bench, Program, demand, isolate, main, processes, wait_until

NOBODY = 65534
PTRACE_SEIZE, PTRACE_DETACH = 0x4206, 17
VERBS = [["suspend"], ["dump"], ["dump", "--leave-running"], ["check"]]

_libc = ctypes.CDLL(None, use_errno=True)


def child(world, script):
    process = subprocess.Popen(["/bin/sh", "-c", script], env=world.env, stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, start_new_session=True)
    world.own(process.pid)
    return process


def refused_all(bench, pid, code, *texts, verbs=VERBS):
    for verb in verbs:
        bench.case(f"{' '.join(verb)}: {texts}", bench.refused, [*verb, pid], code, *texts)


def not_cuda(bench):
    process = child(bench.world, "exec sleep 1000")
    try:
        for verb in (["suspend"], ["resume"], ["gpu", "lock"], ["gpu", "toggle"]):
            bench.refused([*verb, process.pid], 5, process.pid, "GPU")
        demand(processes.is_alive(process.pid), "it has ended")
    finally:
        process.kill()
        process.wait()


def a_thread(bench, program):
    tids = [int(t) for t in os.listdir(f"/proc/{program.pid}/task") if int(t) != program.pid]
    for verb in VERBS:
        bench.refused([*verb, tids[0]], 2, tids[0], "thread", program.pid)
    bench.refused(["gpu", "state", tids[0]], 2, tids[0], "thread")
    bench.refused(["gpu", "lock", tids[0]], 2, tids[0], "thread")


def gone(bench):
    process = child(bench.world, "exit 0")
    process.wait()
    refused_all(bench, process.pid, 3, process.pid)
    refused_all(bench, 2 ** 22 + 1, 3)


def a_zombie(bench):
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    bench.world.own(pid)
    wait_until(lambda: processes.stat(pid)[1] == "Z", 60, "no zombie")
    refused_all(bench, pid, 3, pid, "ended")
    os.waitpid(pid, 0)


def traced(bench, program):
    demand(_libc.ptrace(PTRACE_SEIZE, program.pid, None, None) == 0, "cannot trace")
    try:
        refused_all(bench, program.pid, 5, program.pid, "traced", os.getpid(), verbs=[v for v in VERBS if v != ["check"]])
        found = bench.world.stasis("check", program.pid, expect=5).out
        demand(f"cannot   traced              process {program.pid} " in found and str(os.getpid()) in found, found)
    finally:
        # A stopped process must be resumed first.
        os.kill(program.pid, 19)
        os.waitpid(program.pid, 2)
        _libc.ptrace(PTRACE_DETACH, program.pid, None, None)
        os.kill(program.pid, 18)


def ourselves(bench):
    stasis = str(bench.world.bin / "stasis")
    for script in ('exec "$0" "$1" $$', '"$0" "$1" $$; exit $?'):
        for verb in ("suspend", "dump"):
            bench.refused(["-c", script, stasis, verb], 5, program="/bin/sh")


class Nobody:
    """A user who can read the build and has a separate state directory."""

    def __init__(self, bench):
        self.world = bench.world
        self.build = bench.world.folder / "build"
        self.home = bench.world.folder / "nobody"
        self.env = {"STASIS_STATE_DIR": str(self.home), "SOFTGPU_DIR": str(self.home / "gpu"),
                    "TMPDIR": str(self.home), "LD_LIBRARY_PATH": str(self.build / "lib" / "softgpu")}

    def __enter__(self):
        self.build.mkdir(exist_ok=True)
        isolate.mount(str(self.world.build), str(self.build), flags=isolate.MS_BIND)
        self.home.mkdir(exist_ok=True)
        os.chown(self.home, NOBODY, NOBODY)
        os.chmod(self.world.folder, 0o755)
        return self

    def __exit__(self, *_):
        # Waits for softgpu's broker, which exits some time after its last client.
        isolate.unmount(str(self.build))
        self.world.reap()

    def words(self, *args):
        return ["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", self.build / "bin" / "stasis", *args]

    def stasis(self, *args):
        command = self.world.begin(*self.words(*args), env=self.env, program="/usr/bin/setpriv").wait()
        self.world.reap()
        demand(command.code == 0, lambda: f"as nobody:\n{command}")
        return command


def another_users(bench, program):
    with Nobody(bench) as nobody:
        for verb in VERBS + [["gpu", "lock"], ["gpu", "state"]]:
            bench.case(f"{' '.join(verb)} of another user's", bench.refused,
                       nobody.words(*verb, program.pid), 4, program.pid, env=nobody.env,
                       program="/usr/bin/setpriv")


def has_sys_resource():
    """In a container root may lack the capability, and then cannot dump programs of other users."""
    status = open("/proc/self/status").read()
    return int(status.split("CapEff:")[1].split()[0], 16) >> 24 & 1


def suspended_by_another_user(bench):
    """Root does not have that user's state. The error names the user and shows a command."""
    with Nobody(bench) as nobody:
        env = {"SOFTGPU_DIR": nobody.env["SOFTGPU_DIR"]}
        nobody.stasis("gpu", "ls")
        nobody.stasis("run", "--job", "his", "--", nobody.build / "workloads" / "vector", "--memory", "32M",
                      "--interval", "10")
        log = nobody.home / "data" / "jobs" / "his" / "log"
        wait_until(lambda: "READY" in log.read_text(), 60, "it does not start")
        pid = nobody.stasis("ps", "--json").json()["jobs"][0]["pid"]
        nobody.stasis("suspend", "his")
        what = f"user {NOBODY} has suspended it and holds its GPU memory"
        how = f"`sudo -u '#{NOBODY}' stasis resume {pid}`"
        bench.refused(["resume", pid], 7, what, how, env=env)
        if has_sys_resource():
            bench.refused(["dump", pid], 7, what, how, env=env)
        else:
            bench.refused(["dump", pid], 4, "CAP_SYS_RESOURCE", env=env)
        bench.refused(["resume", "his"], 3, "another user", env=env)
        recovered = bench.world.stasis("recover", env=env).out
        demand(f"user {NOBODY} has the suspended process {pid}" in recovered, f"recover says: {recovered}")
        nobody.stasis("resume", "his")
        seen = log.read_text().count("ROUND")
        wait_until(lambda: log.read_text().count("ROUND") > seen, 60, "it does not run on")
        nobody.stasis("kill", "his")
        nobody.stasis("wait", "his")  # ends normally when asked to
        nobody.stasis("delete", "his")
        nobody.stasis("arena", "free")
        place = f"/dev/shm/stasis-{NOBODY}"  # empty, but not removed
        wait_until(lambda: not os.listdir(place), 60, lambda: f"there is {os.listdir(place)}")
        os.rmdir(place)


def run(bench: Bench):
    bench.world.stasis("recover")
    program = Program(bench.world, "p", "threads", ["--memory", "1M", "--interval", "20"]).spawn()
    bench.case("not CUDA", not_cuda, bench)
    bench.case("a thread", a_thread, bench, program)
    bench.case("gone", gone, bench)
    bench.case("a zombie", a_zombie, bench)
    bench.case("traced", traced, bench, program)
    bench.case("ourselves", ourselves, bench)
    bench.case("another user's", another_users, bench, program)
    bench.case("suspended by another user", suspended_by_another_user, bench)
    refused_all(bench, 1, 5, "process 1")
    program.expect_running()
    program.finish()


def outside(build):
    """Kernel threads are visible only in the initial pid namespace."""
    found = processes.stat(2)
    if os.geteuid() != 0 or found is None or found[0] != "kthreadd":
        print("no kernel threads are visible here: that case is skipped")
        return
    with tempfile.TemporaryDirectory() as state:
        for verb in VERBS:
            done = subprocess.run([f"{build}/bin/stasis", *verb, "2"], capture_output=True, text=True,
                                  env={**os.environ, "STASIS_STATE_DIR": state}, timeout=60)
            if done.returncode != 5 or "kernel thread" not in done.stderr:
                print(f"FAILED  {' '.join(verb)} of a kernel thread: exit {done.returncode}: {done.stderr}")
                sys.exit(1)


if __name__ == "__main__":
    sys.exit(main(run, outside))
