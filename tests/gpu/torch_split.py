"""A model whose layers are split over the visible GPUs, beside a tensor of random words on each. A
round is one forward pass of one of 24 inputs in turn; its checksum covers every bit of the output.

  --gpus N      number of GPUs; each has an equal share of the layers
  --cache GIB   the size of the tensor on each GPU
  --churn       each round changes every word of the tensors; the 24th restores the original ones
"""

import functools
import hashlib
import operator
import random

from protocol import Protocol
from torch_llama import random_words, words_sum

PERIOD = 24
WIDTH = 4096
LAYERS = 16


def options(parser):
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--cache", type=int, default=1)
    parser.add_argument("--churn", action="store_true")


def masks():
    """Returns one mask for each round of a period; together they change nothing."""
    drawn = random.Random(4)
    some = [drawn.getrandbits(62) for _ in range(PERIOD - 1)]
    return some + [functools.reduce(operator.xor, some)]


def main():
    protocol = Protocol(options)
    import torch

    protocol.imported()
    torch.use_deterministic_algorithms(True)
    gpus = [f"cuda:{n}" for n in range(protocol.options.gpus)]
    with torch.inference_mode():
        torch.manual_seed(1)
        layers = []
        for n in range(LAYERS):
            device = gpus[n * len(gpus) // LAYERS]
            layers.append(torch.nn.Linear(WIDTH, WIDTH, dtype=torch.bfloat16).to(device))
        caches = [random_words(torch, protocol.options.cache, device) for device in gpus]
        sums = [words_sum(torch, cache) for cache in caches]
        peer = [torch.cuda.can_device_access_peer(a, b) for a, b in [(0, 1), (1, 0)]] if len(gpus) > 1 else []
        print(f"MODEL {LAYERS} layers on {gpus}, peer access possible: {peer}", flush=True)
        mask, changed = masks() if protocol.options.churn else [0] * PERIOD, 0
        protocol.ready()
        for number in protocol.rounds():
            if protocol.options.churn:
                changed ^= mask[number % PERIOD]
                for cache in caches:
                    cache.bitwise_xor_(mask[number % PERIOD])
            generator = torch.Generator().manual_seed(number % PERIOD)
            x = torch.randn(256, WIDTH, generator=generator).to(torch.bfloat16)
            for layer in layers:
                x = torch.relu(layer(x.to(layer.weight.device)))
            # Mix in a part of each tensor, which may be copied from one GPU to the other.
            at = number % PERIOD * 4096
            for cache in caches:
                x = x + (cache[at:at + WIDTH].to(x.device) % 7).to(torch.bfloat16)
            out = x.cpu().view(torch.int16).numpy().tobytes()
            protocol.print_round(number, hashlib.sha256(out).hexdigest()[:16])
        for cache in caches:
            cache.bitwise_xor_(changed)
        protocol.finish([words_sum(torch, cache) for cache in caches] == sums, "a tensor has changed")


if __name__ == "__main__":
    main()
