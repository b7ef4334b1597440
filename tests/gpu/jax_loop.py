"""A jitted loop in JAX beside arrays of random words. A round is ten of its steps, with a checksum
of every bit of the state. The state repeats after PERIOD rounds.

  --memory GIB   size of the arrays
"""

from protocol import Protocol

PERIOD = 8
PIECE_WORDS = 1 << 28  # 1 GiB


def main():
    protocol = Protocol(lambda parser: parser.add_argument("--memory", type=int, default=1))
    import jax
    import jax.numpy as jnp

    protocol.imported()

    @jax.jit
    def random_words(seed):
        word = jnp.arange(PIECE_WORDS, dtype=jnp.uint32) ^ seed * jnp.uint32(0x9E3779B9)
        for factor in (0x85EBCA6B, 0xC2B2AE35):
            word = (word ^ word >> 15) * jnp.uint32(factor)
        return word ^ word >> 16

    @jax.jit
    def words_sum(words):
        words = words.ravel()
        return (words * (2 * jnp.arange(words.size, dtype=jnp.uint32) + 1)).sum(dtype=jnp.uint32)

    @jax.jit
    def start(seed):
        return jax.random.normal(jax.random.key(seed), (1024, 1024), jnp.float32)

    @jax.jit
    def ten_steps(matrix, state):
        return jax.lax.fori_loop(0, 10, lambda _, x: jnp.tanh(matrix @ x / 8), state)

    @jax.jit
    def bits_sum(state):
        return words_sum(jax.lax.bitcast_convert_type(state, jnp.uint32))

    pieces = [random_words(jnp.uint32(n)) for n in range(protocol.options.memory)]
    sums = [int(words_sum(piece)) for piece in pieces]
    matrix = start(1)
    print(f"DEVICE {jax.devices()[0].device_kind}, {len(set(sums))} different sums", flush=True)
    protocol.ready()
    state = None
    for number in protocol.rounds():
        state = ten_steps(matrix, start(2) if number % PERIOD == 1 else state)
        protocol.print_round(number, f"{int(bits_sum(state)):08x}")
    protocol.finish([int(words_sum(piece)) for piece in pieces] == sums, "the arrays have changed")


if __name__ == "__main__":
    main()
