#!/bin/sh
# Dumps, with --leave-running, a program that frees and allocates most of the GPU's memory all the time. Stasis copies its
# memory while it runs, and must neither make its allocations fail nor write a wrong image.
#
#   tests/gpu/churn.sh DIST_DIR OUT_DIR     KEPT_GIB (10) and CHURN_GIB (36) of the GPU's memory; DUMPS (4)
#
# Images are written to SHM (/dev/shm). Writes OUT_DIR/summary.txt, OUT_DIR/churn.json and OUT_DIR/logs.tar.gz. Takes at
# most BUDGET_S (180) seconds.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
exec python3 "$here/churn.py" "$@"
