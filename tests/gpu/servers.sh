#!/bin/sh
# Shows the main use on a machine with a GPU: a PyTorch generation server as a job, through the daemon, suspended and
# resumed under requests, dumped, killed, restored by its name; and two such servers that take turns on a GPU which is too
# small for both (docs/guides/two-servers.md). Every answer is compared with the earlier one.
#
#   tests/gpu/servers.sh DIST_DIR OUT_DIR [STEP…]     all steps, or those whose names begin with STEP
#   CACHE_GIB (60) beside the 15 GiB of each of the two; host memory for both is needed. TURNS (10)
#   GPU=soft tests/gpu/servers.sh …                   on softgpu, small
#
# Needs python3 with torch and transformers. Writes OUT_DIR/summary.txt, OUT_DIR/servers.json and OUT_DIR/logs.tar.gz.
# Takes at most BUDGET_S (500) seconds.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
exec python3 "$here/servers.py" "$@"
