"""A CUDA program that forks and prints, as lines of KEY VALUE, the GPU resources of the child. Then
both wait for SIGTERM. Uses only ctypes, so that only the driver opens GPU files."""

import ctypes
import json
import os
import re
import signal
import sys
import time

MIB = 1 << 20
DEVICE_FILE = re.compile(r"/dev/nvidia|/softgpu/")
FORKS = 30


def say(key, value):
    print(key, json.dumps(value), flush=True)


def device_fds():
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if DEVICE_FILE.match(target):
            found[int(name)] = target
    return found


def mappings():
    """Returns [begin, end, perms, path, kernel flags] of mappings of GPU files."""
    found, at = [], None
    with open("/proc/self/smaps") as file:
        for line in file:
            head = re.match(r"([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \S+\s*(.*)", line)
            if head:
                at = [int(head[1], 16), int(head[2], 16), head[3], head[4], ""]
                if DEVICE_FILE.match(at[3]):
                    found.append(at)
            elif line.startswith("VmFlags:"):
                at[4] = line[8:].strip()
    return found


def path_at(address):
    with open("/proc/self/maps") as file:
        for line in file:
            begin, end = (int(x, 16) for x in line.split()[0].split("-"))
            if begin <= address < end:
                return line.split(maxsplit=5)[1] + " " + (line.split(maxsplit=5)[5:] or [""])[0].strip()
    return "not mapped"


def readable(address):
    """Reads the address in a grandchild, which the access may kill."""
    pid = os.fork()
    if pid == 0:
        os._exit(0 if ctypes.string_at(address, 8) == b"\x5a" * 8 else 2)
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return ["yes", "", "with other contents"][os.WEXITSTATUS(status)]


def fork_ms():
    began = time.perf_counter()
    for _ in range(FORKS):
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    return (time.perf_counter() - began) / FORKS * 1000


class Nvml:
    """NVML, opened by the parent before CUDA, as in PyTorch."""

    def __init__(self):
        self.library = None
        try:
            self.library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        self.library.nvmlInit_v2()

    def memory(self):
        if self.library is None:
            return "no NVML"
        handle, memory = ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()
        result = self.library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle))
        if result == 0:
            result = self.library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
        return f"result {result}"


def main():
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
    nvml = Nvml() if "--nvml" in sys.argv else None
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name, *arguments, must=True):
        result = getattr(cuda, name)(*arguments)
        if must and result != 0:
            say("FAILED", f"{name}: {result}")
            sys.exit(1)
        return result

    context, device = ctypes.c_void_p(), ctypes.c_uint64()
    host, managed = ctypes.c_void_p(), ctypes.c_uint64()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    call("cuMemAlloc_v2", ctypes.byref(device), ctypes.c_size_t(64 * MIB))
    call("cuMemHostAlloc", ctypes.byref(host), ctypes.c_size_t(4 * MIB), 0)
    ctypes.memset(host.value, 0x5a, 4 * MIB)
    areas = {"pinned": host.value}
    if "--managed" in sys.argv:  # managed memory prevents a suspend
        call("cuMemAllocManaged", ctypes.byref(managed), ctypes.c_size_t(4 * MIB), 1)
        ctypes.memset(managed.value, 0x5a, 4 * MIB)
        areas["managed"] = managed.value
    say("PARENT-FDS", device_fds())
    parent = mappings()
    say("PARENT-MAPPINGS", parent)
    for name, address in areas.items():
        say(f"PARENT-{name.upper()}", path_at(address))
    say("FORK-MS", fork_ms())
    if nvml:
        say("PARENT-NVML", nvml.memory())
    ends = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ends[1])
        say("CHILD-FDS", device_fds())
        say("CHILD-MAPPINGS", mappings())
        say("CHILD-NUMBERS", sorted(int(n) for n in os.listdir("/proc/self/fd")))
        for name, address in areas.items():
            say(f"CHILD-{name.upper()}", [path_at(address), readable(address)])
        say("CHILD-SYNCHRONIZE", call("cuCtxSynchronize", must=False))
        say("CHILD-INIT", call("cuInit", 0, must=False))
        if nvml:
            say("CHILD-NVML", nvml.memory())
        say("CHILD", os.getpid())
        os.read(ends[0], 1)
        os._exit(0)
    os.close(ends[0])
    # The parent's GPU memory is unchanged, whatever the child did with its files.
    probe = ctypes.create_string_buffer(4)
    while not stop:
        call("cuMemsetD32_v2", device, 0x12345678, ctypes.c_size_t(MIB))
        call("cuMemcpyDtoH_v2", probe, device, ctypes.c_size_t(4))
        if probe.raw != b"\x78\x56\x34\x12":
            say("FAILED", "the parent's memory is wrong")
            break
        signal.sigtimedwait([], 0.05)
    os.close(ends[1])
    status = os.waitpid(child, 0)[1]
    print("EXIT-SUCCESS" if stop and status == 0 else f"FAILED: {status}", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
