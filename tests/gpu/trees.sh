#!/bin/sh
# Shows on a machine with a GPU which descriptors and mappings of the GPU a child forked without exec inherits and can
# use, with and without the agent, and that trees with such children are dumped.
#
#   tests/gpu/trees.sh DIST_DIR OUT_DIR [STEP…]
#   GPU=soft tests/gpu/trees.sh …                 on softgpu
#
# Needs python3, with torch for the last step. Writes OUT_DIR/summary.txt, OUT_DIR/trees.json and OUT_DIR/logs.tar.gz;
# logs/fork-*.out have the mappings. Takes at most BUDGET_S (240) seconds.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
exec python3 "$here/trees.py" "$@"
