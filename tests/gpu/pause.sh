#!/bin/sh
# Measures how long `dump --leave-running` stops a program with 39 GiB on the GPU and 1.4 GiB of CPU memory (PyTorch with
# Llama-8B's shape), while it generates: a first dump, a second one that begins at once, when the disk is still busy, and
# third ones. Each dump is verified, and every result of the program is compared with the undisturbed run.
#
#   tests/gpu/pause.sh DIST_DIR OUT_DIR     LAYERS (32), CACHE_GIB (20); THIRD (2): dumps after the second one;
#                                           BASE: another DIST_DIR, measured in the same way before, for comparison
#   GPU=soft tests/gpu/pause.sh …           on softgpu with a small program
#
# Writes OUT_DIR/summary.txt, OUT_DIR/pause.json and OUT_DIR/logs.tar.gz. Takes at most BUDGET_S (230) seconds, twice as
# long with BASE.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
[ -z "${BASE:-}" ] || python3 "$here/pause.py" "$BASE" "${2:?OUT_DIR}/base" || true
exec python3 "$here/pause.py" "$@"
