#!/bin/sh
# Tests that a program is not affected when another program on the same GPUs is suspended and resumed repeatedly: kernels
# longer than a time slice, peer access, NCCL ranks in the middle of collectives, and many NCCL jobs, which are affected
# (docs/nccl.md). Each by the driver alone, by the data plane, and with the context kept. The steps spin-… measure the
# progress of one program beside long kernels of the other; one GPU is enough for them.
#
#   tests/gpu/neighbours.sh DIST_DIR OUT_DIR [STEP…]     steps of neighbours.py; default: all; GPU=soft: on softgpu, no NCCL
#
# Needs two GPUs and python3 with torch. Writes OUT_DIR/summary.txt, OUT_DIR/neighbours.json and OUT_DIR/logs.tar.gz, the
# kernel's lines of each step among the logs. Takes at most BUDGET_S (400) seconds; TIMES (10) suspends of each.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
# Multicast can disable the GPUs of a whole host.
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1
export SOFTGPU_DEVICES=2
exec python3 "$here/neighbours.py" "$@"
