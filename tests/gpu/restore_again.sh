#!/bin/sh
# Measures a restore with 39 GiB on the GPU and 1.4 GiB of CPU memory (PyTorch with Llama-8B's shape) from a tmpfs, again
# and again from one image. After each restore the program's next results are compared with the undisturbed run.
#
#   tests/gpu/restore_again.sh DIST_DIR OUT_DIR   LAYERS (32), CACHE_GIB (20); AGAIN (5): restores;
#                                                 BASE: another DIST_DIR, which restores in turn with the first
#   GPU=soft tests/gpu/restore_again.sh …         on softgpu with a small program
#
# Writes OUT_DIR/summary.txt, OUT_DIR/restore_again.json and OUT_DIR/logs.tar.gz. Takes at most BUDGET_S (230) seconds.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
exec python3 "$here/restore_again.py" "$@"
