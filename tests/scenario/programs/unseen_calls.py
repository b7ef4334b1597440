"""unseen_calls.py [--nccl]: a program with GPU memory that also looks up functions in a second copy
of the driver, unknown to its agent; with --nccl it has a socket like an NCCL communicator's
(pool.py). It follows the workloads' protocol."""

import ctypes
import pathlib
import shutil
import signal
import sys
import tempfile

from pool import Gpu


def copy_of_driver():
    mapped = pathlib.Path("/proc/self/maps").read_text().split("\n")
    driver = next(line.split()[-1] for line in mapped if "libcuda.so" in line)
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copy(driver, folder + "/libcopy.so")
        return ctypes.CDLL(copy)


def main():
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
    gpu = Gpu(0)
    gpu.fill(0)
    getattr(copy_of_driver(), "cuMemAlloc_v2")
    print("READY", flush=True)
    number, good = 0, True
    while good and not stop:
        number += 1
        good = gpu.holds(number - 1)
        gpu.fill(number)
        print(f"ROUND {number} {gpu.pattern(number):08x}", flush=True)
        signal.sigtimedwait([], 0.02)
    print("EXIT-SUCCESS" if good and gpu.holds(number) else f"FAILED: round {number}", flush=True)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
