"""The workloads' protocol (workloads/common/protocol.h) for Python programs, with two additions:

  --orders FIFO   print IMPORTED after all imports, and wait for a line before touching the GPU
  --batches       every later line is a number: do that many rounds, print BATCH <rounds> <seconds>
"""

import argparse
import os
import signal
import time

# Must precede the import of torch: cuBLAS reads it once.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


class Protocol:
    def __init__(self, add_options=None):
        parser = argparse.ArgumentParser()
        parser.add_argument("--rounds", type=int, default=0)
        parser.add_argument("--orders")
        parser.add_argument("--batches", action="store_true")
        if add_options:
            add_options(parser)
        self.options = parser.parse_args()
        self.stop = False
        self.orders = None
        if self.options.orders:
            # Opened for both directions, so that it never reaches end-of-file.
            self.orders = os.fdopen(os.open(self.options.orders, os.O_RDWR), "rb", buffering=0)
        signal.signal(signal.SIGTERM, self._on_stop)

    def _on_stop(self, _signal, _frame):
        self.stop = True
        if self.orders:
            os.write(self.orders.fileno(), b"\n")  # wakes a thread that waits for a line

    def imported(self):
        if self.orders:
            print("IMPORTED", flush=True)
            self.orders.readline()
            if self.stop:
                raise SystemExit(0)

    def ready(self):
        print("READY", flush=True)

    def rounds(self):
        number = 0
        while not self.stop and self.options.batches:
            batch = int(self.orders.readline().strip() or 0)
            began = time.perf_counter()
            for number in range(number + 1, number + batch + 1):
                yield number
            print(f"BATCH {batch} {time.perf_counter() - began:.6f}", flush=True)
        while not self.stop and (self.options.rounds == 0 or number < self.options.rounds):
            number += 1
            yield number

    def print_round(self, number, checksum):
        print(f"ROUND {number} {checksum}", flush=True)

    def finish(self, verified, what):
        """Exits the program; `what` names the compared data."""
        print("EXIT-SUCCESS" if verified else f"FAILED: {what}", flush=True)
        raise SystemExit(0 if verified else 1)
