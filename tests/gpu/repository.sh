#!/bin/sh
# Measures repositories in a folder in memory: pushes and restores of one program, encrypted and plain, beside a local
# restore and beside copies of the same bytes by parallel threads.
#
#   tests/gpu/repository.sh DIST_DIR OUT_DIR     GPU=soft: on softgpu
#
# Writes OUT_DIR/summary.txt, OUT_DIR/repository.json and OUT_DIR/logs.tar.gz. Takes at most BUDGET_S (240) seconds.
# SIZE (16G) is the program's memory; PLACE (/dev/shm) needs four times as much.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
exec python3 "$here/repository.py" "$@"
