#!/bin/sh
# Two programs on the same GPUs, of which one is suspended and resumed again and again: what is done to one is not the
# other's affair. Kernels that are longer than a time slice; peer access; ranks of NCCL in the middle of collectives; many jobs
# with NCCL, which do not stand it (docs/nccl.md). Each by the driver alone, by the data plane, and with the context kept.
# And what one gets done beside the long kernels of the other (spin-…), for which one GPU is enough.
#
#   tests/gpu/neighbours.sh DIST_DIR OUT_DIR [STEP…]     those of neighbours.py, or all; GPU=soft: on softgpu, no NCCL
#
# Wants two GPUs and python3 with torch. Writes OUT_DIR/summary.txt, OUT_DIR/neighbours.json and OUT_DIR/logs.tar.gz, the
# kernel's lines of each step among the logs. Takes at most BUDGET_S (400) seconds; TIMES (10) suspends of each.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
# Multicast can put the GPUs of a whole host out of service.
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1
export SOFTGPU_DEVICES=2
exec python3 "$here/neighbours.py" "$@"
