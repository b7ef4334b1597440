#!/bin/sh
# Shows on a machine with a GPU that more programs share it than fit: four PyTorch generation servers under random
# requests, and two programs that alternate (docs/guides/sharing.md). Every answer is compared with the first one for its
# seed. For comparison, a server is also killed and started again in place of a swap.
#
#   tests/gpu/sharing.sh DIST_DIR OUT_DIR [STEP…]     all steps, or those whose names begin with STEP
#   SIZE_GIB (25; 40 for an H200) of each of the four servers; all four must not fit on the GPU, but in host memory
#   FILLER_GIB (0) of a program that does not share the GPU, beside the servers: leave room for some of them and no more
#   SECONDS_OF_REQUESTS (300); PAIR_GIB (30) of each program that alternates
#   GPU=soft tests/gpu/sharing.sh …                   on softgpu, small
#
# Needs python3 with torch and transformers. Writes OUT_DIR/summary.txt, OUT_DIR/sharing.json and OUT_DIR/logs.tar.gz.
# Takes at most BUDGET_S (560) seconds.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
exec python3 "$here/sharing.py" "$@"
