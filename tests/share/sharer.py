#!/usr/bin/env python3
"""A program that uses GPUs at random times and verifies all of its memory each time.

    sharer.py --mib 96 [--gpus 2] [--seed 7] [--rest 2.0] [--grow MIB]

Prints READY, then a line "round N" after each use. `--grow` allocates this much more in the first round. An allocation
that fails for lack of memory is counted and tried again. Exits with 1 when the memory is wrong.
"""

import argparse
import array
import ctypes
import random
import time

OUT_OF_MEMORY = 2
MIB = 1 << 20


class Driver:
    def __init__(self, gpus):
        self.library = ctypes.CDLL("libcuda.so.1")
        self.contexts = []
        self.current = None
        self.failures = 0
        self.call("cuInit", 0)
        for index in range(gpus):
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
        self.driver, self.gpu, self.words, self.address = driver, gpu, mib * MIB // 4, ctypes.c_uint64()
        driver.use(gpu)
        driver.retry("cuMemAlloc_v2", ctypes.byref(self.address), ctypes.c_size_t(mib * MIB))

    def fill(self, value):
        self.value = value
        self.driver.use(self.gpu)
        self.driver.call("cuMemsetD32_v2", self.address, ctypes.c_uint(value), ctypes.c_size_t(self.words))

    def verify(self):
        self.driver.use(self.gpu)
        words = (ctypes.c_uint32 * self.words)()
        self.driver.call("cuMemcpyDtoH_v2", words, self.address, ctypes.c_size_t(4 * self.words))
        if bytes(words) != array.array("I", [self.value]).tobytes() * self.words:
            raise SystemExit(f"WRONG: memory on GPU {self.gpu} is not {self.value}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=96)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rest", type=float, default=2.0)
    parser.add_argument("--grow", type=int, default=0)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    driver = Driver(options.gpus)
    blocks = [Block(driver, gpu, options.mib) for gpu in range(options.gpus)]
    for block in blocks:
        block.fill(chance.getrandbits(32))
    print("READY", flush=True)
    number = 0
    while True:
        time.sleep(chance.uniform(0, 2 * options.rest))
        number += 1
        if number == 1 and options.grow:
            blocks.append(Block(driver, 0, options.grow))
            blocks[-1].fill(chance.getrandbits(32))
        for block in blocks:
            block.verify()
            block.fill(chance.getrandbits(32))
        print(f"round {number}", flush=True)


if __name__ == "__main__":
    main()
