"""subreaper.py COMMAND ARG…: runs the command and adopts all orphans, like the first process of a
container. It follows the workloads' protocol far enough to be started and ended."""

import ctypes
import signal
import subprocess
import sys

PR_SET_CHILD_SUBREAPER = 36

stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
    sys.exit("prctl")
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)
print("READY", flush=True)
while not stop:
    signal.sigtimedwait([], 0.1)
print("EXIT-SUCCESS", flush=True)
