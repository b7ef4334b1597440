#!/bin/sh
# Restores a program with much GPU data from the page cache, directly from the image and through arenas, in turn, and
# compares both with the speed of PCIe. Each restored program checks all of its memory. A damaged byte must be found.
#
#   tests/gpu/restore_fast.sh DIST_DIR OUT_DIR   MEMORY (16G); ROUNDS (3); STORES ("disk shm"): a folder on the disk,
#                                                one in /dev/shm, or both
#   GPU=soft tests/gpu/restore_fast.sh …         on softgpu, with 64M
#
# Needs a tarball from this checkout. Writes OUT_DIR/summary.txt, OUT_DIR/restore_fast.json and OUT_DIR/logs.tar.gz.
# Takes at most BUDGET_S (300) seconds, host memory of 2 x MEMORY (3 x with shm), and a disk of MEMORY.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
exec python3 "$here/restore_fast.py" "$@"
