"""Tests which calls the driver's lock admits, and which of those end the process after a
checkpoint. Runs without an agent, by single driver steps, while every processor is busy.

  lock_probe.py DIST_DIR OUT_DIR      needs gcc and cuda.h; writes OUT_DIR/summary.txt and lock_probe.json
  lock_probe.py DIST_DIR OUT_DIR queries     the functions that only read state, on a quiet machine
"""

import os
import pathlib
import shutil
import struct
import subprocess
import sys
import time

from harness import Report, demand, is_alive, run, tail
from ride import Job, Machine

HERE = pathlib.Path(__file__).resolve().parent
CALLS = """cuStreamQuery cuEventQuery cuEventElapsedTime cuStreamSynchronize cuEventSynchronize cuCtxSynchronize
cuMemGetInfo cuCtxGetCurrent cuCtxSetCurrent cuCtxGetDevice cuCtxGetLimit cuPointerGetAttribute
cuMemGetAddressRange cuMemHostGetDevicePointer cuStreamGetFlags cuStreamGetCtx cuStreamIsCapturing
cuDeviceGetAttribute cuDeviceGetUuid cuDevicePrimaryCtxGetState cuGetErrorString cuEventRecord
cuMemsetD8Async cuLaunchHostFunc""".split()


QUERIES = """cuDeviceGet cuDeviceGetCount cuDeviceGetName cuDeviceGetLuid cuDeviceTotalMem cuDeviceComputeCapability
cuDeviceGetPCIBusId cuDeviceGetByPCIBusId cuDeviceCanAccessPeer cuDeviceGetP2PAttribute cuDeviceGetExecAffinitySupport
cuCtxPushCurrent cuCtxGetFlags cuCtxGetId cuCtxGetApiVersion cuCtxGetCacheConfig cuCtxGetSharedMemConfig
cuCtxGetStreamPriorityRange cuCtxGetExecAffinity cuModuleGetFunctionCount cuModuleEnumerateFunctions cuModuleGetFunction
cuKernelGetLibrary cuFuncGetAttribute cuFuncGetModule cuFuncGetName cuFuncGetParamInfo cuFuncIsLoaded
cuOccupancyMaxActiveBlocksPerMultiprocessor cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags
cuOccupancyMaxPotentialBlockSize cuOccupancyAvailableDynamicSMemPerBlock cuMemHostGetFlags cuPointerGetAttributes
cuMemGetAccess cuMemGetAllocationGranularity cuMemGetAllocationPropertiesFromHandle cuStreamGetPriority cuStreamGetId
cuStreamGetDevice cuStreamGetCaptureInfo cuThreadExchangeStreamCaptureMode cuGraphGetNodes""".split()


class Probe:
    def __init__(self, machine, program, call):
        self.call = call
        self.machine = machine
        self.file = machine.state / f"{call}.count"
        self.job = Job(machine, call.lower(), [program, call, self.file], agent=False)

    def count(self):
        return struct.unpack("Q", self.file.read_bytes())[0]

    def goes_on(self):
        before = self.count()
        time.sleep(0.3)
        return is_alive(self.job.pid) and self.count() > before + 2

    def step(self, verb):
        done = self.machine.stasis(None, "gpu", verb, self.job.pid, timeout_s=60, expect=None)
        return "" if done.code == 0 else f"{verb}: {tail(done.err, 200)}"

    def walk(self):
        self.job.wait_ready(30)
        demand(self.goes_on(), "it does not call")
        said = [self.step("lock")]
        locked = self.goes_on()
        said.append(self.step("checkpoint"))
        away = self.goes_on()
        alive = is_alive(self.job.pid)
        if alive:
            said += [self.step("restore"), self.step("unlock")]
        back = alive and self.goes_on()
        self.job.kill()
        words = ["goes on while locked" if locked else "waits at the lock",
                 "ended after the checkpoint" if not alive else
                 "goes on after it" if away else "waits after it", "goes on in the end" if back else "is gone"]
        return ", ".join(words + [s for s in said if s])


def main():
    report = Report(sys.argv[2], int(os.environ.get("BUDGET_S", "150")), "lock_probe")
    machine = Machine(sys.argv[1], report, False)
    program = machine.state / "lock_probe"
    cuda = pathlib.Path(shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc").resolve().parent.parent
    built = run(["gcc", "-O1", f"-I{cuda}/include", "-o", program, HERE / "lock_probe.c",
                 f"-L{cuda}/lib64/stubs", "-lcuda", "-lpthread"], 60)
    demand(built.code == 0, built.err)
    report.facts["command"] = " ".join(sys.argv)
    queries = sys.argv[3:] == ["queries"]
    busy = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(0 if queries else 2 * os.cpu_count())]
    try:
        for call in QUERIES if queries else CALLS:
            probe = Probe(machine, program, call)
            try:
                report.step(call, report.left_s(), probe.walk)
            finally:
                probe.job.kill()
    finally:
        for each in busy:
            each.kill()
    machine.clean()
    sys.exit(report.finish())


if __name__ == "__main__":
    main()
