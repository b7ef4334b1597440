"""Two processes that share CUDA tensors through torch.multiprocessing: the child's tensor in this
process and this one's in the child. In each round both change both tensors, and each checks the
other's changes. A round's checksum is the sum of both tensors.

  --megabytes N   of each tensor
"""

from protocol import Protocol

SEED = 17


def options(parser):
    parser.add_argument("--megabytes", type=int, default=64)


def words(torch, megabytes, seed):
    return torch.arange(megabytes << 18, dtype=torch.int32, device="cuda") % 8191 + seed


def step(tensor, number):
    tensor.mul_(3).add_(number).remainder_(1000003)


def digest(torch, tensor):
    return int(tensor.sum(dtype=torch.int64).item())


def live_as_child(pipe, megabytes):
    import signal

    import torch

    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the parent decides when
    mine = words(torch, megabytes, SEED)
    pipe.send(mine)
    theirs = pipe.recv()
    while True:
        try:
            number = pipe.recv()
        except EOFError:
            number = None
        if number is None:
            break
        seen = digest(torch, mine), digest(torch, theirs)
        step(mine, number + 1000)
        step(theirs, number + 1000)
        torch.cuda.synchronize()
        pipe.send(seen)
    del theirs


def main():
    protocol = Protocol(options)
    import torch
    import torch.multiprocessing

    protocol.imported()
    megabytes = protocol.options.megabytes
    # A separate program started before CUDA, so that it inherits nothing of the driver.
    context = torch.multiprocessing.get_context("spawn")
    pipe, end = context.Pipe()
    child = context.Process(target=live_as_child, args=(end, megabytes))
    child.start()
    end.close()
    mine = words(torch, megabytes, SEED + 1)
    theirs = pipe.recv()
    pipe.send(mine)
    expected_mine, expected_theirs = mine.clone(), theirs.clone()
    protocol.ready()
    right = True
    for number in protocol.rounds():
        for tensor in (mine, theirs, expected_mine, expected_theirs):
            step(tensor, number)
        torch.cuda.synchronize()
        pipe.send(number)
        seen = pipe.recv()
        right = right and seen == (digest(torch, expected_theirs), digest(torch, expected_mine))
        for tensor in (expected_mine, expected_theirs):
            step(tensor, number + 1000)
        right = right and torch.equal(mine, expected_mine) and torch.equal(theirs, expected_theirs)
        if not right:
            break
        protocol.print_round(number, f"{digest(torch, mine):x}-{digest(torch, theirs):x}")
    del theirs
    pipe.send(None)
    child.join()
    protocol.finish(right and child.exitcode == 0, "the shared tensors differ from what was written")


if __name__ == "__main__":
    main()
