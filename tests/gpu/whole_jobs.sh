#!/bin/sh
# Tests whole jobs on a machine with two GPUs in one run: one process on two GPUs and the GPUs exchanged, trees, DataLoader
# workers (two_gpus.sh); memory shared by CUDA IPC, by exported handles and by torch.multiprocessing (ipc.sh); two ranks of
# NCCL (nccl.sh); CRIU's own plugin above our cuda-checkpoint (dropin.sh).
#
#   tests/gpu/whole_jobs.sh DIST_DIR OUT_DIR [PART…]     CUDA_PLUGIN as for dropin.sh
#
# Each part writes below OUT_DIR/PART; OUT_DIR/summary.txt has all of them. Exit code 0: every part passed.
set -u
here=$(cd "$(dirname "$0")" && pwd)
dist=$1
out=$2
shift 2
[ $# -gt 0 ] || set -- two_gpus ipc nccl dropin
mkdir -p "$out"
: >"$out/summary.txt"
worst=0
for part in "$@"; do
  "$here/$part.sh" "$dist" "$out/$part" || worst=1
  { echo "== $part"; cat "$out/$part/summary.txt"; } >>"$out/summary.txt"
done
exit $worst
