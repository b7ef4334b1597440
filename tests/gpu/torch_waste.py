"""Tensors of a Llama-8B shape, a cache in pieces of 16 MiB and a thousand small ones. Round 1
allocates all of them, round 2 frees a random half and empties PyTorch's cache."""

import random

from protocol import Protocol

LAYERS, WIDTH, INNER, KV, VOCABULARY = 32, 4096, 14336, 1024, 128256


def main():
    protocol = Protocol()
    import torch

    protocol.imported()
    shapes = [(VOCABULARY, WIDTH)] * 2
    for _ in range(LAYERS):
        shapes += [(WIDTH, WIDTH)] * 2 + [(KV, WIDTH)] * 2 + [(INNER, WIDTH)] * 3 + [(WIDTH,)] * 2
    shapes += [(8 << 20,)] * 256 + [(n * 37 + 1,) for n in range(1000)]
    chance = random.Random(7)
    chance.shuffle(shapes)
    torch.cuda.init()
    tensors = []
    protocol.ready()
    for number in protocol.rounds():
        if number == 1:
            tensors = [torch.full(shape, 1.5, dtype=torch.bfloat16, device="cuda") for shape in shapes]
        else:
            chance.shuffle(tensors)
            del tensors[len(tensors) // 2:]
            torch.cuda.empty_cache()
        torch.cuda.synchronize()
        protocol.print_round(number, f"{len(tensors)}")
    protocol.finish(all(bool((tensor == 1.5).all()) for tensor in tensors), "the tensors have changed")


if __name__ == "__main__":
    main()
