#!/bin/sh
# Shows on a machine with two, four or eight GPUs of one model what two_gpus.sh and nccl.sh show with two: ranks of NCCL
# with all-reduce, all-gather and point-to-point, eager and in CUDA graphs; a model cut by tensor parallelism; the GPUs
# permuted; processes killed in the middle of operations; and how each phase grows with the number of GPUs.
#
#   tests/gpu/four_gpus.sh DIST_DIR OUT_DIR [STEP…]   all steps, or those whose names begin with STEP, in this order:
#                                                     machine, nccl, graph, tensor, kill-…, rotate, scale-…, extra-…;
#                                                     CACHE_GIB (40) on each GPU in scale-…, LAYERS (16) of the model,
#                                                     GPUS: number of GPUs (all)
#   GPU=soft tests/gpu/four_gpus.sh …                 on softgpu (SOFTGPU_DEVICES, 4): workloads in the place of PyTorch
#
# Needs python3 with torch and transformers. Writes OUT_DIR/summary.txt, OUT_DIR/four_gpus.json and OUT_DIR/logs.tar.gz.
# Exit code 0: every step passed. Takes at most BUDGET_S (540) seconds; all steps on eight GPUs need more, so give kinds
# of steps to several runs.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
# Multicast can disable the GPUs of a whole host.
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1
export SOFTGPU_DEVICES="${SOFTGPU_DEVICES:-4}" SOFTGPU_DIR="${SOFTGPU_DIR:-/tmp/softgpu-four-gpus}"
exec python3 "$here/four_gpus.py" "$@"
