"""Processes with one GPU each, connected by NCCL. The first process is rank 0 and starts the others.

  --ranks N     number of processes, on GPUs 0 to N-1
  --backend B   nccl (default), or gloo, with which several ranks can be on one GPU
  --apart       the ranks are started by somebody else, who gives each its --rank and the same --meet
"""

import os
import subprocess
import sys
import tempfile


def options(parser, ranks=2):
    parser.add_argument("--ranks", type=int, default=ranks)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--backend", default="nccl")
    parser.add_argument("--meet", help="the file or URL by which the ranks find each other")
    parser.add_argument("--apart", action="store_true")


class Ranks:
    def __init__(self, protocol):
        """Rank 0 starts the others. Create it before the import of torch, so that all import at the
        same time."""
        self.protocol = protocol
        self.rank, self.count, self.meet = protocol.options.rank, protocol.options.ranks, protocol.options.meet
        self.others = []
        self.flag = None
        if self.rank == 0 and not protocol.options.apart:
            # Like torchrun: by default each process would use threads for all processors.
            os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // self.count)))
            self.meet = os.path.join(tempfile.mkdtemp(), "meet")
            self.others = [subprocess.Popen([sys.executable, *sys.argv, "--rank", str(rank), "--meet", self.meet])
                           for rank in range(1, self.count)]

    def join(self, torch):
        """Connects the ranks. Returns when a first collective has worked."""
        import torch.distributed as dist

        backend, gpu = self.protocol.options.backend, self.rank % torch.cuda.device_count()
        torch.cuda.set_device(gpu)
        meet = self.meet if "://" in self.meet else f"file://{self.meet}"
        device = {"device_id": torch.device("cuda", gpu)} if backend == "nccl" else {}
        dist.init_process_group(backend, init_method=meet, rank=self.rank, world_size=self.count, **device)
        self.flag = torch.zeros(1, dtype=torch.int64, device="cuda")
        dist.all_reduce(self.flag)
        torch.cuda.synchronize()

    def rounds(self):
        """Yields the numbers of rounds. Only rank 0 gets the signal to stop; the ranks sum that flag,
        so all end after the same round."""
        import torch.distributed as dist

        number = 0
        while number == 0 or self.flag.item() == 0:
            number += 1
            yield number
            self.flag.fill_(int(self.protocol.stop))
            dist.all_reduce(self.flag)

    def finish(self, verified, what):
        """Exits; rank 0 waits for the others. `what` names the compared data."""
        codes = [other.wait(30) for other in self.others] if verified else []
        good = verified and not any(codes)
        if not good:
            print(f"FAILED: rank {self.rank}: {what}, exit codes of others {codes}", flush=True)
        elif self.rank == 0:
            print("EXIT-SUCCESS", flush=True)
        # Skips the shutdown of process groups, which waits for all ranks and is not tested here.
        os._exit(0 if good else 1)
