#!/bin/sh
# Moves programs between two hosts, which are two state folders on one machine; the other host restores into a new pid
# namespace. Instead of ssh a shell runs the other side, so that the connection is as fast as memory.
#
#   tests/gpu/migrate.sh DIST_DIR OUT_DIR [STEP…]
#
# LAYERS (32), CACHE_GIB (0), VECTOR (4G) and MOVES (4) set the sizes of the model and of `vector`, and the number of
# moves; both hosts need room for the program's memory in STATE_DIR. Needs python3 with torch and transformers. Writes
# OUT_DIR/summary.txt, OUT_DIR/migrate.json and OUT_DIR/logs.tar.gz. Exit code 0: every step passed. Takes at most
# BUDGET_S (300) seconds.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
exec python3 "$here/migrate.py" "$@"
