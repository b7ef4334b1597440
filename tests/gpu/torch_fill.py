"""Random data in GPU memory, in chunks of 1 GiB. A round compares one chunk with the same random numbers, generated
again; the end compares all chunks.

  --gib N   chunks
"""

import time

from protocol import Protocol

WORDS = (1 << 30) // 8


def random_words(torch, seed, out):
    generator = torch.Generator("cuda").manual_seed(seed)
    return out.random_(generator=generator)


def main():
    protocol = Protocol(lambda parser: parser.add_argument("--gib", type=int, default=36))
    import torch

    protocol.imported()

    def empty():
        return torch.empty(WORDS, dtype=torch.int64, device="cuda")

    chunks = [random_words(torch, seed, empty()) for seed in range(protocol.options.gib)]
    again = empty()

    def is_intact(seed):
        return torch.equal(chunks[seed], random_words(torch, seed, again))

    protocol.ready()
    intact = True
    for number in protocol.rounds():
        seed = number % len(chunks)
        intact = is_intact(seed)
        if not intact:
            break
        protocol.print_round(number, f"{int(chunks[seed][number]):x}")
        time.sleep(0.05)
    protocol.finish(intact and all(is_intact(seed) for seed in range(len(chunks))), "the chunks have changed")


if __name__ == "__main__":
    main()
