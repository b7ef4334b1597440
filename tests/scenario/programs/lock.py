"""lock.py PID: locks a program with the driver alone, as a tool without Stasis would."""

import ctypes
import sys

driver = ctypes.CDLL("libcuda.so.1")
arguments = (ctypes.c_uint * 16)(10000)  # CUcheckpointLockArgs: the timeout in ms, zeros
sys.exit(driver.cuInit(0) or driver.cuCheckpointProcessLock(int(sys.argv[1]), ctypes.byref(arguments)))
