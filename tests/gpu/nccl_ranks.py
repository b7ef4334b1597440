"""Two ranks of NCCL, one on each GPU, that sum random tensors endlessly. Both know the expected sum
and compare every round. The first process is rank 0 and starts the other; a round's checksum is
that of the sum.

  --megabytes N    size of each rank's tensor
  --ahead N        collectives of a round that are launched before either rank waits
  --interval MS    between rounds
"""

import os
import subprocess
import sys
import tempfile
import time

from protocol import Protocol

RANKS = 2


def options(parser):
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--ahead", type=int, default=1)
    parser.add_argument("--interval", type=int, default=20)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--meet", help="the file by which the ranks find each other")


def words(torch, count, number, rank):
    generator = torch.Generator("cuda").manual_seed(1000003 * number + rank)
    return torch.randint(-2**40, 2**40, (count,), dtype=torch.int64, device="cuda", generator=generator)


def start_other(meet, arguments):
    return subprocess.Popen([sys.executable, __file__, *arguments, "--rank", "1", "--meet", meet])


def main():
    protocol = Protocol(options)
    asked = protocol.options
    other = None
    if asked.rank == 0:
        asked.meet = os.path.join(tempfile.mkdtemp(), "meet")
        other = start_other(asked.meet, sys.argv[1:])
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(asked.rank)
    dist.init_process_group("nccl", init_method=f"file://{asked.meet}", rank=asked.rank, world_size=RANKS,
                            device_id=torch.device("cuda", asked.rank))
    count = asked.megabytes << 17
    print_round = protocol.print_round if asked.rank == 0 else lambda *_: None
    stop = torch.zeros(1, dtype=torch.int64, device="cuda")
    dist.all_reduce(stop)
    torch.cuda.synchronize()
    if asked.rank == 0:
        protocol.ready()
    number, right = 0, True
    # Only rank 0 gets the signal to stop; the ranks sum that flag too, so both end after the same
    # round.
    while right:
        number += 1
        mine = words(torch, count, number, asked.rank)
        expected = mine + words(torch, count, number, RANKS - 1 - asked.rank)
        for again in range(asked.ahead):
            total = mine.clone()
            dist.all_reduce(total)
        stop.fill_(int(protocol.stop))
        dist.all_reduce(stop)
        right = torch.equal(total, expected)
        if not right:
            break
        print_round(number, f"{int(total.sum().item()) & 0xffffffffffff:x}")
        if stop.item() > 0:
            break
        time.sleep(asked.interval / 1000)
    if asked.rank != 0:
        if not right:
            print(f"FAILED: rank {asked.rank}: the sum of round {number} is wrong", flush=True)
        # Skips the shutdown of process groups, which waits for all ranks and is not tested here.
        os._exit(0 if right else 1)
    code = other.wait(30) if right else 1
    print("EXIT-SUCCESS" if right and code == 0 else f"FAILED: rank 0: the sum of round {number} is wrong", flush=True)
    os._exit(0 if right and code == 0 else 1)


if __name__ == "__main__":
    main()
