"""Shows how the driver reads CUDA_VISIBLE_DEVICES, and whether it moves a program to a GPU that the variable does not
name. Needs two GPUs of one model and driver 580; runs without Stasis.

  visible_probe.py
"""

import ctypes
import os
import subprocess
import sys

VARIABLE = "CUDA_VISIBLE_DEVICES"
BYTES = 1 << 22


def text_of(uuid):
    digits = uuid.hex()
    return "GPU-" + "-".join(digits[a:b] for a, b in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32)))


class Driver:
    """Initialises the driver while the variable is `during`; afterwards the variable is `after`."""

    def __init__(self, during=None, after=None):
        if during is not None:
            os.environ[VARIABLE] = during
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.result = self.cuda.cuInit(0)
        if after is not None:
            os.environ[VARIABLE] = after

    def uuids(self):
        count = ctypes.c_int(0)
        self.cuda.cuDeviceGetCount(ctypes.byref(count))
        return [self.uuid(device) for device in range(count.value)]

    def uuid(self, device):
        uuid = ctypes.create_string_buffer(16)
        self.cuda.cuDeviceGetUuid_v2(uuid, device)
        return uuid.raw

    def bus_id(self, device):
        text = ctypes.create_string_buffer(20)
        self.cuda.cuDeviceGetPCIBusId(text, 20, device)
        return text.value.decode()


def show(value, *machine):
    driver = Driver(value)
    print(f"cuInit {driver.result}, GPUs {[machine.index(text_of(uuid)) for uuid in driver.uuids()]}")


def hold(during, after):
    """Fills memory on its first GPU, and checks it after each line of standard input."""
    driver = Driver(during, after)
    cuda = driver.cuda
    context, memory = ctypes.c_void_p(), ctypes.c_ulonglong()
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    cuda.cuCtxSetCurrent(context)
    cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(BYTES))
    cuda.cuMemsetD8_v2(memory, 0x5A, ctypes.c_size_t(BYTES))
    cuda.cuCtxSynchronize()
    print(f"READY {len(driver.uuids())}", flush=True)
    for _ in sys.stdin:
        found = ctypes.create_string_buffer(BYTES)
        result = cuda.cuMemcpyDtoH_v2(found, memory, ctypes.c_size_t(BYTES))
        right = found.raw == b"\x5a" * BYTES
        print(f"copy {result}, right {right}, now on {text_of(driver.uuid(0))} {driver.bus_id(0)}", flush=True)


def child(*words):
    return subprocess.Popen([sys.executable, __file__, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def move(driver, pid, pairs):
    cuda = driver.cuda
    results = [cuda.cuCheckpointProcessLock(pid, ctypes.create_string_buffer(64)),
               cuda.cuCheckpointProcessCheckpoint(pid, ctypes.create_string_buffer(64))]
    table = ctypes.create_string_buffer(b"".join(pairs), 16 * len(pairs))
    arguments = ctypes.create_string_buffer(64)
    ctypes.cast(arguments, ctypes.POINTER(ctypes.c_void_p))[0] = ctypes.addressof(table)
    ctypes.cast(arguments, ctypes.POINTER(ctypes.c_uint))[2] = len(pairs) // 2
    results.append(cuda.cuCheckpointProcessRestore(pid, arguments))
    if results[-1] == 0:
        results.append(cuda.cuCheckpointProcessUnlock(pid, ctypes.create_string_buffer(64)))
    return results


def main():
    os.environ.pop(VARIABLE, None)
    driver = Driver()
    first, second = driver.uuids()[:2]
    a, b = text_of(first), text_of(second)
    for value in ["1,0", "1", "1,9,0", "0,0", "0,1,1", "-1,0", "", " 1 , 0", "+1", "0x1", "1gpu", "00001", ",1", "1,,0",
                  "1 0", b[:8], b[:12], "GPU-", f"{b},0", f"0,{b}", f"{b},{a},{b}", "GPU-" + b[4:].upper(), b[4:],
                  "1,0,2,3,4,5,6,7", f"{b},{a},GPU-9", f"MIG-{b}"]:
        print(f"{value!r}: {child('show', value, a, b).communicate()[0].strip()}", flush=True)
    exchange = [first, second, second, first]
    for during, after, pairs in [("0", "0", exchange[:2]), ("0,1", "0", exchange), ("0,1,2,3,4,5,6", "0", exchange),
                                 (f"{a},{b}", a, exchange)]:
        program = child("hold", during, after)
        ready = program.stdout.readline().strip()
        results = move(driver, program.pid, pairs)
        answer = ""
        if results[-1] == 0:
            answer = program.communicate("check\n")[0].strip()
        program.kill()
        program.wait()
        print(f"{during!r} in cuInit, then {after!r}: {ready}, results {results} {answer}", flush=True)


if __name__ == "__main__":
    {"show": show, "hold": hold}[sys.argv[1]](*sys.argv[2:]) if len(sys.argv) > 1 else main()
