"""Fills GPU memory with random words. Each round first compares all of it with what the round before has written, and
then writes new words. In place of a checksum, a round prints its seconds.

  --gigabytes N
"""

import time

from protocol import Protocol


def options(parser):
    parser.add_argument("--gigabytes", type=int, default=36)


def main():
    protocol = Protocol(options)
    import torch

    protocol.imported()
    generator = torch.Generator(device="cuda")
    # One more GiB is for the expected words.
    parts = [torch.empty(1 << 28, dtype=torch.int32, device="cuda") for _ in range(protocol.options.gigabytes - 1)]
    expected = torch.empty(1 << 28, dtype=torch.int32, device="cuda")

    def write(tensor, number, index):
        generator.manual_seed(number * 1000 + index)
        tensor.random_(-(1 << 31), 1 << 31, generator=generator)

    for index, part in enumerate(parts):
        write(part, 0, index)
    torch.cuda.synchronize()
    protocol.ready()
    right = True
    for number in protocol.rounds():
        began = time.perf_counter()
        for index, part in enumerate(parts):
            write(expected, number - 1, index)
            right = right and torch.equal(part, expected)
            write(part, number, index)
        torch.cuda.synchronize()
        if not right:
            break
        protocol.print_round(number, f"{time.perf_counter() - began:.4f}")
    protocol.finish(right, "the random words differ from what was written")


if __name__ == "__main__":
    main()
