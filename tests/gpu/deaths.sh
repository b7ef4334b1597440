#!/bin/sh
# Tests whether the driver's own checkpoint kills or damages programs with running threads: JAX, and the
# workload `spinner`, both without an agent, by single driver steps. Tests also whether it helps to stop all
# threads except the driver's.
#
#   tests/gpu/deaths.sh DIST_DIR OUT_DIR [ROUNDS]       ROUNDS (20) each
#
# Needs python3 with jax, and gcc. Writes OUT_DIR/summary.txt, OUT_DIR/deaths.json and OUT_DIR/logs.tar.gz.
# Exit code 0: nothing died and nothing was damaged. Takes at most BUDGET_S (300) seconds.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
exec python3 "$here/deaths.py" "$@"
