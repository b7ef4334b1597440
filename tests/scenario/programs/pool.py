"""pool.py METHOD [WORKERS] [--nccl]: a program with GPU memory and workers started by Python's
multiprocessing (fork, forkserver, spawn), like PyTorch's DataLoader. It follows the workloads'
protocol.

Workers that were not forked have their own GPU memory, on the GPUs in turn. Every round gives each
of them a number to work on, and compares the results of workers and GPU with a separate
computation. With --nccl each process that uses a GPU has a socket like an NCCL communicator's.
"""

import ctypes
import multiprocessing
import os
import signal
import socket
import sys
import zlib

WORDS = 1 << 20
BYTES = 4 * WORDS


class Gpu:
    """Memory of this size on a GPU, overwritten completely by each fill."""

    def __init__(self, device):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        context, self.memory = ctypes.c_void_p(), ctypes.c_uint64()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        self.call("cuMemAlloc_v2", ctypes.byref(self.memory), ctypes.c_size_t(BYTES))
        if "--nccl" in sys.argv:
            self.held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self.held.bind(f"\0/tmp/nccl-socket-0-{os.getpid():x}")

    def call(self, name, *arguments):
        result = getattr(self.cuda, name)(*arguments)
        if result != 0:
            raise RuntimeError(f"{name}: {result}")

    @staticmethod
    def pattern(number):
        return (number * 2654435761 + 12345) & 0xffffffff

    def fill(self, number):
        self.call("cuMemsetD32_v2", self.memory, ctypes.c_uint(self.pattern(number)), ctypes.c_size_t(WORDS))

    def holds(self, number):
        found = ctypes.create_string_buffer(BYTES)
        self.call("cuMemcpyDtoH_v2", found, self.memory, ctypes.c_size_t(BYTES))
        return found.raw == self.pattern(number).to_bytes(4, "little") * WORDS


def item(index, number):
    return zlib.crc32(f"{index} {number}".encode())


def work(index, device, asked, answered):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    gpu = Gpu(device) if device is not None else None
    last = 0
    if gpu:
        gpu.fill(last)
    answered.put((index, 0, "ready"))
    while True:
        number = asked.get()
        if number is None:
            break
        wrong = gpu is not None and not gpu.holds(last)
        if gpu:
            gpu.fill(number)
        last = number
        answered.put((index, number, "wrong memory" if wrong else item(index, number)))


def main():
    method, workers = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 2
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
    gpu = Gpu(0)
    gpu.fill(0)
    devices = ctypes.c_int()
    gpu.call("cuDeviceGetCount", ctypes.byref(devices))
    start = multiprocessing.get_context(method)
    asked, answered = [start.Queue() for _ in range(workers)], start.Queue()
    crew = [start.Process(target=work, daemon=True,
                          args=(i, None if method == "fork" else i % devices.value, asked[i], answered))
            for i in range(workers)]
    for process in crew:
        process.start()
    for _ in crew:
        answered.get()
    print("READY", flush=True)
    number, good = 0, True
    while good and not stop:
        number += 1
        for queue in asked:
            queue.put(number)
        answers = {index: (what, said) for index, what, said in (answered.get() for _ in crew)}
        good = gpu.holds(number - 1) and answers == {i: (number, item(i, number)) for i in range(workers)}
        gpu.fill(number)
        print(f"ROUND {number} {zlib.crc32(repr(sorted(answers.items())).encode()):08x}", flush=True)
        signal.sigtimedwait([], 0.02)
    for queue in asked:
        queue.put(None)
    for process in crew:
        process.join()
        good = good and process.exitcode == 0
    print("EXIT-SUCCESS" if good and gpu.holds(number) else f"FAILED: round {number}", flush=True)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
