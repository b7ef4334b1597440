"""Multiplies matrices of doubles, with one kernel that runs far longer than a time slice of the
GPU. A round's checksum is that of the product, which is the same in every round.

  --size N      of the square matrices; 12288 takes an H200 about 0.1 s
"""

import hashlib

from protocol import Protocol


def main():
    protocol = Protocol(lambda parser: parser.add_argument("--size", type=int, default=12288))
    import torch

    protocol.imported()
    torch.use_deterministic_algorithms(True)
    size = protocol.options.size
    with torch.inference_mode():
        generator = torch.Generator("cuda").manual_seed(7)
        # Integers, whose sums are exact in any order.
        left, right = (torch.randint(-1000, 1000, (size, size), device="cuda", generator=generator).double()
                       for _ in range(2))
        expected = left @ right
        checksum = hashlib.sha256(expected.sum(0).cpu().numpy().tobytes()).hexdigest()[:16]
        protocol.ready()
        right_so_far = True
        for number in protocol.rounds():
            right_so_far = torch.equal(left @ right, expected)
            if not right_so_far:
                break
            protocol.print_round(number, checksum)
        protocol.finish(right_so_far, "a product is wrong")


if __name__ == "__main__":
    main()
