"""Keeps KEPT_GIB of random data and, in each round, allocates CHURN_GIB, fills and checks it, and gives it back to
the driver. Memory that something else keeps after it was freed makes an allocation fail."""

import os

from protocol import Protocol

GIB = 1 << 30
KEPT, CHURN = int(os.environ.get("KEPT_GIB", "10")), int(os.environ.get("CHURN_GIB", "36"))


def main():
    protocol = Protocol()
    import torch

    protocol.imported()
    torch.manual_seed(5)
    kept = torch.randint(-(1 << 62), 1 << 62, (KEPT * GIB // 8,), device="cuda")
    total = int(kept.sum())
    protocol.ready()
    for number in protocol.rounds():
        churned = torch.full((CHURN * GIB // 4,), number, dtype=torch.int32, device="cuda")
        right = bool((churned == number).all())
        del churned
        torch.cuda.empty_cache()
        if not right or int(kept.sum()) != total:
            protocol.finish(False, f"the memory of round {number}")
        protocol.print_round(number, f"{total:x}")
    protocol.finish(int(kept.sum()) == total, "the kept memory")


if __name__ == "__main__":
    main()
