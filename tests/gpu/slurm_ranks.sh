#!/bin/sh
# Shows on a machine with two GPUs (BACKEND=gloo: one) that the tasks of a Slurm step, each a rank of NCCL, are dumped and
# restored together (--stasis=together,tcp=keep), without Slurm: a script starts one launcher for each task as slurmstepd
# does, as a user with the launcher's two capabilities, and sends SIGTERM to all as at a preemption. All sums are compared.
#
#   tests/gpu/slurm_ranks.sh DIST_DIR OUT_DIR
#   ROUNDS (2): preemptions
#   RANKS (2): ranks, one on each GPU
#   BACKEND (nccl): with gloo, the ranks are on one GPU and exchange their data over TCP
#   GPU=soft tests/gpu/slurm_ranks.sh …     on softgpu, with programs that do not know each other
#
# Needs python3 with torch, setpriv and the rights of root; with nft, it also looks for a network lock that is left.
# Writes OUT_DIR/summary.txt, OUT_DIR/slurm_ranks.json and OUT_DIR/logs.tar.gz. Takes at most BUDGET_S (400) seconds.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
# Multicast can disable the GPUs of a whole host.
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1
exec python3 "$here/slurm_ranks.py" "$@"
