#!/bin/sh
# Shows on a machine with a GPU that a GPU process is saved to disk, killed and restored, with nothing installed
# but an unpacked tarball.
#
#   tests/gpu/first_light.sh DIST_DIR OUT_DIR [STEP…]     all steps, or those whose names begin with STEP
#   AGENT=no …        without the agent: the driver carries everything
#   GPU=soft tests/gpu/first_light.sh …                   the same on softgpu; the PyTorch steps are left out
#
# Writes OUT_DIR/summary.txt, OUT_DIR/first_light.json and OUT_DIR/logs.tar.gz. Exit code 0: every step
# passed. Takes less than 9 minutes in any case (BUDGET_S changes that).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
exec python3 "$here/first_light.py" "$@"
