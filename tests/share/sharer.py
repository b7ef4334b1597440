#!/usr/bin/env python3
"""A program that uses GPUs at random times and verifies all of its memory each time.

    sharer.py --mib 96 [--pieces 4] [--first 1] [--gpus 2] [--seed 7] [--rest 2.0] [--grow MIB]

Uses `--gpus` GPUs from number `--first` on, with `--mib` on each, in so many allocations. Prints READY, then a line
"round N waited S" after each use: S is how many seconds its first GPU call took. `--grow` allocates this much more in
the first round. An allocation that fails for lack of memory is counted and tried again. Exits with 1 when the memory
is wrong.
"""

import argparse
import array
import ctypes
import random
import time

OUT_OF_MEMORY = 2
MIB = 1 << 20
PIECE_BYTES = 64 * MIB  # that are copied from the GPU at a time


class Driver:
    def __init__(self, first, gpus):
        self.library = ctypes.CDLL("libcuda.so.1")
        self.contexts = []
        self.current = None
        self.failures = 0
        self.call("cuInit", 0)
        for index in range(first, first + gpus):
            device, context = ctypes.c_int(), ctypes.c_void_p()
            self.call("cuDeviceGet", ctypes.byref(device), index)
            self.retry("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            self.contexts.append(context)

    def call(self, name, *arguments):
        result = getattr(self.library, name)(*arguments)
        if result != 0:
            raise SystemExit(f"{name}: {result}")

    def retry(self, name, *arguments):
        while (result := getattr(self.library, name)(*arguments)) == OUT_OF_MEMORY:
            self.failures += 1
            print(f"out of memory: {self.failures}", flush=True)
            time.sleep(0.1)
        if result != 0:
            raise SystemExit(f"{name}: {result}")

    def use(self, gpu):
        # While a program is suspended with its contexts, softgpu lets this call wait in the driver, where the agent does
        # not see it. The real driver returns.
        if self.current != gpu:
            self.call("cuCtxSetCurrent", self.contexts[gpu])
        self.current = gpu


class Block:
    """Memory on one GPU whose words all have one value."""

    def __init__(self, driver, gpu, mib):
        self.driver, self.gpu, self.bytes, self.address = driver, gpu, mib * MIB, ctypes.c_uint64()
        driver.use(gpu)
        driver.retry("cuMemAlloc_v2", ctypes.byref(self.address), ctypes.c_size_t(self.bytes))

    def fill(self, value):
        self.value = value
        self.driver.use(self.gpu)
        self.driver.call("cuMemsetD32_v2", self.address, ctypes.c_uint(value), ctypes.c_size_t(self.bytes // 4))

    def read(self, offset, size):
        piece = (ctypes.c_char * size)()
        self.driver.use(self.gpu)
        self.driver.call("cuMemcpyDtoH_v2", piece, ctypes.c_uint64(self.address.value + offset), ctypes.c_size_t(size))
        return piece.raw

    def verify(self):
        expected = array.array("I", [self.value]).tobytes() * (min(self.bytes, PIECE_BYTES) // 4)
        for offset in range(0, self.bytes, PIECE_BYTES):
            size = min(PIECE_BYTES, self.bytes - offset)
            if self.read(offset, size) != expected[:size]:
                raise SystemExit(f"WRONG: memory on GPU {self.gpu} is not {self.value}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=96)
    parser.add_argument("--pieces", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rest", type=float, default=2.0)
    parser.add_argument("--grow", type=int, default=0)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    driver = Driver(options.first, options.gpus)
    mib = options.mib // options.pieces
    blocks = [Block(driver, gpu, mib) for gpu in range(options.gpus) for _ in range(options.pieces)]
    for block in blocks:
        block.fill(chance.getrandbits(32))
    print("READY", flush=True)
    number = 0
    while True:
        time.sleep(chance.uniform(0, 2 * options.rest))
        number += 1
        began = time.monotonic()
        blocks[0].read(0, 4)
        waited = time.monotonic() - began
        if number == 1 and options.grow:
            blocks.append(Block(driver, 0, options.grow))
            blocks[-1].fill(chance.getrandbits(32))
        for block in blocks:
            block.verify()
            block.fill(chance.getrandbits(32))
        print(f"round {number} waited {waited:.3f}", flush=True)


if __name__ == "__main__":
    main()
