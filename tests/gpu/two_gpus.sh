#!/bin/sh
# Shows on a machine with two GPUs of one model that whole jobs are suspended, moved, dumped and restored: one
# process on two GPUs, a tree of eight processes on both, peer access, exchanged GPUs, programs that see the GPUs
# under other numbers, and forked workers of PyTorch's DataLoader.
#
#   tests/gpu/two_gpus.sh DIST_DIR OUT_DIR [STEP…]    all steps, or those whose names begin with STEP; CACHE_GIB (16) on
#                                                     each GPU, WIRES_GIB (40) where all memory changes
#   GPU=soft tests/gpu/two_gpus.sh …                  on softgpu: the steps of its programs, small
#
# Needs python3 with torch. Writes OUT_DIR/summary.txt, OUT_DIR/two_gpus.json and OUT_DIR/logs.tar.gz. Exit code 0:
# every step passed and every bar was met. Takes at most BUDGET_S (500) seconds.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
export SOFTGPU_DEVICES=2
exec python3 "$here/two_gpus.py" "$@"
