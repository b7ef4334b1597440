"""The steps of slurm_step.sh."""

import ctypes
import functools
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

from harness import Output, Report, demand, is_alive, tail, wait_until
from ride import Machine

HERE = pathlib.Path(__file__).resolve().parent
SOFT = os.environ.get("GPU") == "soft"
GIB = int(sys.argv[3]) if len(sys.argv) > 3 else 36
ROUNDS = int(os.environ.get("ROUNDS", "3"))
OPTIONS = os.environ.get("OPTIONS", "")
RESERVE = os.environ.get("RESERVE", "both")
JOB = "slurm-7.0.0"
EMPTY_S = 1.5  # the bar: from SIGTERM until the program's data has left the GPU
DUMPED_CODE = 75
MIB = 1 << 20
# The mover copies the data; its own context and that of the driver's checkpoint stay until the dump ends.
CONTEXTS = 0 if SOFT else 1200 * MIB
# The driver's own use varies by this much.
SLACK = 0 if SOFT else 32 * MIB


class Nvml:
    """Used memory of GPU 0."""

    class Memory(ctypes.Structure):
        _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]

    def __init__(self):
        self.library = ctypes.CDLL("libnvidia-ml.so.1")
        self.handle = ctypes.c_void_p()
        for result in (self.library.nvmlInit_v2(),
                       self.library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.handle))):
            demand(result == 0, f"NVML: error {result}")

    def used(self):
        memory = self.Memory()
        result = self.library.nvmlDeviceGetMemoryInfo(self.handle, ctypes.byref(memory))
        demand(result == 0, f"NVML: error {result}")
        return memory.used


class SoftGpu:
    def __init__(self, machine):
        self.machine = machine

    def used(self):
        gpu = self.machine.stasis(None, "gpu", "ls").json()["gpus"][0]
        return gpu["total_bytes"] - gpu["free_bytes"]


class Samples(threading.Thread):
    """Reads the GPU's used memory every few milliseconds until stop()."""

    def __init__(self, gpu):
        super().__init__()
        self.gpu, self.rows, self.ended, self.error = gpu, [], threading.Event(), None
        self.start()

    def run(self):
        try:
            while not self.ended.is_set():
                self.rows.append((time.monotonic(), self.gpu.used()))
                self.ended.wait(0.002)
        except Exception as error:  # noqa: BLE001 - shown by stop()
            self.error = error

    def stop(self):
        self.ended.set()
        self.join()
        demand(self.error is None, f"the GPU's memory cannot be read: {self.error}")

    def steps(self, began, floor):
        """Returns [seconds, MiB above the floor] whenever the memory had changed by 64 MiB."""
        found = []
        for at, used in self.rows:
            mib = (used - floor) // MIB
            if not found or abs(mib - found[-1][1]) >= 64:
                found.append([round(at - began, 3), mib])
        return found

    def first_below(self, limit):
        """Returns when the memory fell to the limit for good; None if it did not."""
        found = None
        for at, used in self.rows:
            found = (found or at) if used <= limit else None
        return found


class Task:
    """The launcher, in the place of a task of job 7, step 0, with GPU 0."""

    def __init__(self, machine):
        self.machine, self.report = machine, machine.report
        self.gpu = SoftGpu(machine) if SOFT else Nvml()
        self.output = Output(machine.log("task.out"))
        self.errors = machine.log("task.err")
        self.process = None
        self.starts = 0
        self.reserve = RESERVE != "off"  # of the next start
        self.empty = self.gpu.used() + SLACK
        if SOFT:
            self.command = [machine.workload("vector"), "--memory", "64M", "--interval", "20"]
        else:
            self.command = [sys.executable, HERE / "torch_fill.py", "--gib", GIB]

    def start(self):
        env = {**self.machine.env, "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_GPUS": "0",
               "SLURM_RESTART_COUNT": str(self.starts)}
        options = ",".join(filter(None, (OPTIONS, "reserve" if self.reserve else "reserve=off")))
        words = [self.machine.dist / "libexec" / "stasis-step", "--job", JOB, "--restarts", self.starts, "--options",
                 options, "--", *self.command]
        self.starts += 1
        # Slurm opens the files of a job with --open-mode=append.
        with open(self.output.path, "ab") as out, open(self.errors, "ab") as err:
            self.process = subprocess.Popen([str(word) for word in words], env=env, stdin=subprocess.DEVNULL, stdout=out,
                                            stderr=err, start_new_session=True)

    def tell(self):
        errors = self.errors.read_text(errors="replace") if self.errors.exists() else ""
        return f"{tail(self.output.text(), 800)}\n{tail(errors, 800)}"

    def wait_rounds(self, more, timeout_s):
        goal = self.output.count() + more

        def there():
            demand(self.output.failure() is None, self.tell())
            demand(self.process.poll() is None, f"the launcher ended with {self.process.returncode}:\n{self.tell()}")
            return self.output.count() >= goal
        wait_until(there, timeout_s, f"{more} more rounds")

    def first(self):
        self.start()
        self.wait_rounds(3, 200)
        self.report.number("GPU memory in use:", (self.gpu.used() - self.empty) / 1e9, "GB")
        return ""

    def await_reserve(self):
        """Waits until host memory for all data is ready, and the mover that registers it has let go of it."""
        began = time.monotonic()
        least = (64 * MIB if SOFT else GIB << 30)
        looks = [0]

        def there():
            demand(self.process.poll() is None, f"the launcher ended with {self.process.returncode}:\n{self.tell()}")
            arenas = self.machine.stasis(None, "arena", "ls").json()["arenas"]
            ready = sum(arena["size_bytes"] for arena in arenas if arena["state"] in ("ready", "kept"))
            looks[0] = looks[0] + 1 if ready >= least else 0
            return looks[0] >= 10
        wait_until(there, 120, "host memory to be ready")
        self.report.number("host memory is ready after:", time.monotonic() - began, "s")

    def preempt(self, number):
        what = f"preemption {number}, {'with' if self.reserve else 'without'} reserve: from SIGTERM"
        if self.reserve:
            self.await_reserve()
        samples = Samples(self.gpu)
        began = time.monotonic()
        os.kill(self.process.pid, signal.SIGCONT)
        os.kill(self.process.pid, signal.SIGTERM)
        try:
            code = self.process.wait(240)
        except subprocess.TimeoutExpired:
            demand(False, f"the launcher does not end:\n{self.tell()}")
        ended = time.monotonic()
        # A context that is being destroyed may outlive its process for a moment.
        wait_until(lambda: self.gpu.used() <= self.empty, 10, "the GPU's memory at the end being that at the start")
        samples.stop()
        demand(code == DUMPED_CODE, f"exit code {code}, not {DUMPED_CODE}:\n{self.tell()}")
        left = samples.first_below(self.empty + CONTEXTS)
        demand(left is not None, "the data did not leave the GPU")
        bar = ("<=", EMPTY_S) if self.reserve else None
        good = self.report.number(f"{what} to a GPU without the program's data:", left - began, "s", bar)
        whole = samples.first_below(self.empty)
        if whole is not None:
            self.report.number(f"{what} to a GPU without any context:", whole - began, "s")
        self.report.number(f"{what} to exit code {DUMPED_CODE}:", ended - began, "s")
        self.account()
        self.report.accounts.append({"subject": JOB, "what": "memory", "account": samples.steps(began, self.empty)})
        demand(good or SOFT or not self.reserve, f"the GPU was empty after {left - began:.2f} s")
        return ""

    def account(self):
        """Records the phases of the last dump."""
        done = self.machine.stasis(None, "checkpoints", JOB)
        self.report.accounts.append({"subject": JOB, "what": "checkpoints", "account": done.json()})

    def requeue(self, number):
        began = time.monotonic()
        self.start()
        self.wait_rounds(1, 200)
        self.report.number(f"requeue {number}: from the start to the next round:", time.monotonic() - began, "s")
        self.wait_rounds(3, 60)
        demand("starts over" not in self.tell(), self.tell())
        numbers = [int(number) for number, _ in self.output.rounds()]
        demand(numbers == list(range(1, len(numbers) + 1)), f"the rounds are not 1, 2, 3, …: {numbers}")
        return ""

    def finish(self):
        """The program alone gets SIGTERM, compares all of its data, and ends; nothing is left of it."""
        self.machine.stasis(None, "kill", "--only", "--signal", "TERM", JOB)
        try:
            code = self.process.wait(120)
        except subprocess.TimeoutExpired:
            demand(False, f"the program does not end:\n{self.tell()}")
        demand(code == 0 and self.output.has("EXIT-SUCCESS"), f"exit code {code}:\n{self.tell()}")
        demand(not self.machine.stasis(None, "image", "ls").json()["images"], "images are left")
        return self.errors.read_text(errors="replace").strip()

    def kill(self):
        if self.process is not None and is_alive(self.process.pid):
            self.machine.stasis(None, "kill", "--signal", "KILL", JOB, expect=None)
            self.process.kill()
            self.process.wait()


def main():
    dist, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    report = Report(out, float(os.environ.get("BUDGET_S", "500")), "slurm_step")
    machine = Machine(dist, report, SOFT)
    task = Task(machine)
    try:
        report.step("start", 220, task.first)
        ways = {"both": (True, False), "on": (True,), "off": (False,)}[RESERVE]
        rounds = [reserve for reserve in ways for _ in range(ROUNDS)]
        for number, after in enumerate([*rounds[1:], False], 1):
            report.step(f"preemption {number}", 250, functools.partial(task.preempt, number))
            task.reserve = after
            report.step(f"requeue {number}", 220, functools.partial(task.requeue, number))
        report.step("end", 130, task.finish)
    finally:
        task.kill()
    code = report.finish()
    machine.clean()
    return code


if __name__ == "__main__":
    sys.exit(main())
