"""Matrix products and custom kernels in CuPy, beside arrays of random words. A round's checksum
covers every bit of the state. The state repeats after PERIOD rounds.

  --memory GIB   size of the arrays
"""

from protocol import Protocol

PERIOD = 8
PIECE_WORDS = 1 << 28  # 1 GiB
SIDE = 1024

KERNELS = r"""
__device__ unsigned mixed(unsigned word) {
  word = (word ^ word >> 15) * 0x85EBCA6Bu;
  word = (word ^ word >> 15) * 0xC2B2AE35u;
  return word ^ word >> 16;
}
#define EACH(i, n) unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x
extern "C" __global__ void fill(unsigned* words, unsigned n, unsigned seed) {
  for (EACH(i, n)) words[i] = mixed(i ^ seed * 0x9E3779B9u);
}
extern "C" __global__ void start(float* state, unsigned n, unsigned seed) {
  for (EACH(i, n)) state[i] = mixed(i + seed) / 4294967296.0f - 0.5f;
}
extern "C" __global__ void bend(float* state, unsigned n) {
  for (EACH(i, n)) state[i] = tanhf(state[i] / 8);
}
extern "C" __global__ void sum(const unsigned* words, unsigned n, unsigned long long* total) {
  unsigned long long own = 0;
  for (EACH(i, n)) own += words[i] * (2ull * i + 1);
  atomicAdd(total, own);
}
"""


def main():
    protocol = Protocol(lambda parser: parser.add_argument("--memory", type=int, default=1))
    import cupy
    import numpy

    protocol.imported()
    module = cupy.RawModule(code=KERNELS)
    kernels = {name: module.get_function(name) for name in ["fill", "start", "bend", "sum"]}

    def launch(name, *arguments):
        kernels[name]((1024,), (256,), tuple(
            numpy.uint32(a) if isinstance(a, int) else a for a in arguments))

    def words_sum(words):
        total = cupy.zeros(1, numpy.uint64)
        launch("sum", words, words.size, total)
        return int(total.get()[0])

    def started(seed):
        state = cupy.empty((SIDE, SIDE), numpy.float32)
        launch("start", state, state.size, seed)
        return state

    pieces = [cupy.empty(PIECE_WORDS, numpy.uint32) for _ in range(protocol.options.memory)]
    for number, piece in enumerate(pieces):
        launch("fill", piece, piece.size, number)
    sums = [words_sum(piece) for piece in pieces]
    matrix, state = started(1), None
    print(f"CUPY {cupy.__version__}, {len(set(sums))} different sums", flush=True)
    protocol.ready()
    for number in protocol.rounds():
        state = started(2) if number % PERIOD == 1 else state
        for _ in range(10):
            state = cupy.matmul(matrix, state)
            launch("bend", state, state.size)
        protocol.print_round(number, f"{words_sum(state.view(numpy.uint32)):016x}")
    protocol.finish([words_sum(piece) for piece in pieces] == sums, "the arrays have changed")


if __name__ == "__main__":
    main()
