#!/bin/sh
# Shows on a machine with a GPU that processes under the agent share GPU memory through CUDA IPC and
# exported handles, and that a job of such processes is suspended, resumed, dumped and restored with
# its contents, also in a separate pid namespace.
#
#   tests/gpu/ipc.sh DIST_DIR OUT_DIR [STEP…]     all steps, or those whose names begin with STEP
#   GPU=soft tests/gpu/ipc.sh …                   on softgpu: the steps of our own program
#
# Needs python3 with torch. Writes OUT_DIR/summary.txt, OUT_DIR/ipc.json and OUT_DIR/logs.tar.gz. Exit code 0: every
# step passed. Takes at most BUDGET_S (600) seconds.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
exec python3 "$here/ipc.py" "$@"
