#!/bin/sh
# Whether the driver's own checkpoint kills or damages programs whose threads go on meanwhile: JAX, and the
# workload `spinner`, both without an agent, by single driver steps. And whether it helps when all threads
# but the driver's own are stopped for it.
#
#   tests/gpu/deaths.sh DIST_DIR OUT_DIR [ROUNDS]       ROUNDS (20) each
#
# Wants python3 with jax, and gcc. Writes OUT_DIR/summary.txt, OUT_DIR/deaths.json and OUT_DIR/logs.tar.gz.
# Exit code 0: nothing died and nothing was damaged. Takes at most BUDGET_S (300) seconds.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
exec python3 "$here/deaths.py" "$@"
