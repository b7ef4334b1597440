#!/bin/sh
# Measures single commands by the wall clock: `stasis suspend` and `stasis resume` of one program, with the resident
# helpers of an earlier command, and without any.
#
#   tests/gpu/single.sh DIST_DIR OUT_DIR     GPU=soft: on softgpu
#
# Writes OUT_DIR/summary.txt, OUT_DIR/single.json and OUT_DIR/logs.tar.gz. Takes at most BUDGET_S
# (120) seconds; PAIRS (10) commands of each kind.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
exec python3 "$here/single.py" "$@"
