#!/bin/sh
# Shows on a machine with two GPUs that two ranks of NCCL are suspended, resumed, dumped and restored, and that their next
# all-reduce is right: with NCCL's defaults (except multicast, which stays off), and with each setting of docs/nccl.md.
#
#   tests/gpu/nccl.sh DIST_DIR OUT_DIR [SETTING…]     settings of nccl.py and neighbours; default: all
#
# Needs python3 with torch. Writes OUT_DIR/summary.txt, OUT_DIR/nccl.json and OUT_DIR/logs.tar.gz. Exit code 0: every
# step passed. Takes at most BUDGET_S (400) seconds.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
# Multicast can disable the GPUs of a whole host.
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1
exec python3 "$here/nccl.py" "$@"
