#!/bin/sh
# Dumps and restores a program in a control group whose memory limit is far below its GPU memory: the data goes through
# files. The program computes and compares all of its memory in each round; two more rounds are awaited after each step.
#
#   tests/gpu/limited.sh DIST_DIR OUT_DIR   SIZE (8G) of GPU memory, LIMIT_MIB (3072), STORE: a folder on a disk
#   GPU=soft tests/gpu/limited.sh …         on softgpu, with 256M below 512 MiB (softgpu's memory is charged, too)
#
# Needs root, control groups v1 or v2, and a disk with twice SIZE. Writes OUT_DIR/summary.txt, OUT_DIR/limited.json and
# OUT_DIR/logs.tar.gz. Takes at most BUDGET_S (200) seconds.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
exec python3 "$here/limited.py" "$@"
