"""Ranks of NCCL, one on each GPU (ranks.py), that exchange random tensors endlessly. Each rank knows
the expected results and compares all of them in every round; a round's checksum is that of rank 0's
results.

  --collectives KIND…   all-reduce (default), all-gather, point-to-point (each rank sends to the next)
  --megabytes N         size of each rank's tensor
  --ahead N             collectives of each kind in a round that are launched before any rank waits
  --graph               captures the collectives of a round in a CUDA graph and replays it each round
  --interval MS         between rounds
"""

import time

import ranks as ranks_of
from protocol import Protocol

KINDS = ["all-reduce", "all-gather", "point-to-point"]


def options(parser):
    ranks_of.options(parser)
    parser.add_argument("--collectives", nargs="+", choices=KINDS, default=KINDS[:1])
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--ahead", type=int, default=1)
    parser.add_argument("--graph", action="store_true")
    parser.add_argument("--interval", type=int, default=20)


def words(torch, count, number, rank):
    generator = torch.Generator("cuda").manual_seed(1000003 * number + rank)
    return torch.randint(-2**40, 2**40, (count,), dtype=torch.int64, device="cuda", generator=generator)


class Collectives:
    """The tensors of one rank, at fixed addresses, and the collectives on them."""

    def __init__(self, torch, ranks, asked):
        import torch.distributed as dist

        self.torch, self.dist, self.ranks, self.ahead = torch, dist, ranks, asked.ahead
        self.count = asked.megabytes << 17
        self.mine = torch.zeros(self.count, dtype=torch.int64, device="cuda")
        sizes = {kind: self.count * (ranks.count if kind == "all-gather" else 1) for kind in asked.collectives}
        self.result = {kind: self.mine.new_zeros(size) for kind, size in sizes.items()}
        # The sums of all results of a round, so that a wrong one shows even if the next one is right.
        self.sum = {kind: self.mine.new_zeros(size) for kind, size in sizes.items()}
        self.graph = None

    def run(self, kind, result):
        rank, count = self.ranks.rank, self.ranks.count
        if kind == "all-reduce":
            result.copy_(self.mine)
            self.dist.all_reduce(result)
        elif kind == "all-gather":
            self.dist.all_gather_into_tensor(result, self.mine)
        else:
            both = [self.dist.P2POp(self.dist.isend, self.mine, (rank + 1) % count),
                    self.dist.P2POp(self.dist.irecv, result, (rank - 1) % count)]
            for request in self.dist.batch_isend_irecv(both):
                request.wait()

    def run_all(self):
        for total in self.sum.values():
            total.zero_()
        for _ in range(self.ahead):
            for kind, result in self.result.items():
                self.run(kind, result)
                self.sum[kind].add_(result)

    def capture(self):
        # Connections and buffers of NCCL must exist before the capture.
        stream = self.torch.cuda.Stream()
        stream.wait_stream(self.torch.cuda.current_stream())
        with self.torch.cuda.stream(stream):
            for _ in range(3):
                self.run_all()
        self.torch.cuda.current_stream().wait_stream(stream)
        self.torch.cuda.synchronize()
        graph = self.torch.cuda.CUDAGraph()
        # Other threads of PyTorch query events meanwhile.
        with self.torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self.run_all()
        self.torch.cuda.synchronize()
        self.graph = graph

    def launch(self, number):
        self.mine.copy_(words(self.torch, self.count, number, self.ranks.rank))
        if self.graph:
            self.graph.replay()
        else:
            self.run_all()

    def expected(self, number):
        """Returns the expected result of each kind."""
        theirs = [words(self.torch, self.count, number, rank) for rank in range(self.ranks.count)]
        return {"all-reduce": sum(theirs[1:], theirs[0]), "all-gather": self.torch.cat(theirs),
                "point-to-point": theirs[self.ranks.rank - 1]}

    def wrong(self, number):
        """Returns the kinds of collectives with a wrong result."""
        expected = self.expected(number)
        return [kind for kind, total in self.sum.items()
                if not self.torch.equal(total, self.ahead * expected[kind])
                or not self.torch.equal(self.result[kind], expected[kind])]

    def checksum(self):
        return f"{sum(int(result.sum()) for result in self.result.values()) & 0xffffffffffff:x}"


def main():
    protocol = Protocol(options)
    ranks = ranks_of.Ranks(protocol)
    import torch

    ranks.join(torch)
    collectives = Collectives(torch, ranks, protocol.options)
    if protocol.options.graph:
        collectives.capture()
    if ranks.rank == 0:
        protocol.ready()
    number, wrong = 0, []
    for number in ranks.rounds():
        collectives.launch(number)
        wrong = collectives.wrong(number)
        if wrong:
            break
        if ranks.rank == 0:
            protocol.print_round(number, collectives.checksum())
        time.sleep(protocol.options.interval / 1000)
    ranks.finish(not wrong, f"wrong results in round {number}: {wrong}")


if __name__ == "__main__":
    main()
