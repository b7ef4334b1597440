#!/bin/sh
# Shows on a machine with a GPU what people come for: a PyTorch generation server as a managed job, through the daemon,
# suspended and resumed under requests, dumped, killed, restored by its name; and two such servers that together do not
# fit the GPU taking turns on it (docs/guides/two-servers.md). Every answer is compared with the one before.
#
#   tests/gpu/servers.sh DIST_DIR OUT_DIR [STEP…]     all steps, or those whose names begin so
#   CACHE_GIB (60) beside the 15 GiB of each of the two; host memory for both is needed. TURNS (10)
#   GPU=soft tests/gpu/servers.sh …                   on softgpu, small
#
# Wants python3 with torch and transformers. Writes OUT_DIR/summary.txt, OUT_DIR/servers.json and OUT_DIR/logs.tar.gz.
# Takes at most BUDGET_S (500) seconds.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
exec python3 "$here/servers.py" "$@"
