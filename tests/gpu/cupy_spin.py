"""Kernels that run for a given time by the GPU's own clock: one block that waits, like a rank of
NCCL for another one. Whether they are preempted is not visible in their results, but in the
progress of other programs. A round's checksum is the number of kernels so far, which the kernels
count themselves.

  --ms N   length of each kernel
"""

from protocol import Protocol

KERNEL = r"""
__device__ unsigned long long now() {
  unsigned long long ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  return ns;
}
extern "C" __global__ void spin(unsigned long long ns, unsigned long long* count) {
  const unsigned long long until = now() + ns;
  while (now() < until) {}
  *count += 1;
}
"""


def main():
    protocol = Protocol(lambda parser: parser.add_argument("--ms", type=int, default=1))
    import cupy
    import numpy

    protocol.imported()
    spin = cupy.RawModule(code=KERNEL).get_function("spin")
    count = cupy.zeros(1, dtype=cupy.uint64)
    nanoseconds = numpy.uint64(protocol.options.ms * 1000000)
    spin((1,), (1,), (numpy.uint64(1), count))
    cupy.cuda.Device().synchronize()
    protocol.ready()
    done = 1
    for number in protocol.rounds():
        spin((1,), (1,), (nanoseconds, count))
        done += 1
        # Read from the GPU: a kernel that did not finish has not counted.
        here = int(count[0])
        protocol.print_round(number, here)
        if here != done:
            break
    protocol.finish(int(count[0]) == done, "a kernel did not count")


if __name__ == "__main__":
    main()
