"""Training of a small transformer with deterministic settings. A round is one step; its checksum
covers every bit of the loss.

  --workers N       data loader processes (forked, PyTorch's default)
  --workers-first   start them before CUDA is initialised, so that they never hold the driver's files
"""

from protocol import Protocol

VOCABULARY = 4096
LENGTH = 128
BATCH = 48
WIDTH = 768
LAYERS = 8


def options(parser):
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--workers-first", action="store_true")


class Sentences:
    """Item i is always the same; computed anew, like in a real loader."""

    def __len__(self):
        return 1 << 30

    def __getitem__(self, index):
        import torch

        generator = torch.Generator().manual_seed(index)
        start = torch.randint(VOCABULARY, (1,), generator=generator)
        steps = torch.randint(1, 5, (LENGTH,), generator=generator)
        return (start + steps.cumsum(0)) % VOCABULARY


class Batches:
    """Yields endlessly, the same for any number of workers."""

    def __iter__(self):
        number = 0
        while True:
            yield range(number * BATCH, (number + 1) * BATCH)
            number += 1


def main():
    protocol = Protocol(options)
    import torch
    from torch import nn

    protocol.imported()
    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cudnn.benchmark = False
    loader = torch.utils.data.DataLoader(
        Sentences(), batch_sampler=Batches(), num_workers=protocol.options.workers,
        persistent_workers=protocol.options.workers > 0)
    batches = iter(loader) if protocol.options.workers_first else None

    torch.manual_seed(2)
    layer = nn.TransformerEncoderLayer(WIDTH, 12, 4 * WIDTH, dropout=0.1, batch_first=True,
                                       norm_first=True)
    model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH),
                          nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False),
                          nn.Linear(WIDTH, VOCABULARY)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    if batches is None:
        batches = iter(loader)
    protocol.ready()
    loss_value = float("nan")
    for number in protocol.rounds():
        batch = next(batches).cuda()
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(batch[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss_value = loss.item()
        protocol.print_round(number, loss_value.hex())
    protocol.finish(loss_value == loss_value, "the loss is not a number")


if __name__ == "__main__":
    main()
