#!/bin/sh
# Measures the first suspend of a PyTorch program by a daemon: without arena.reserve, with it, and with it after the mover
# has ended; and warm suspends beside them. The program fills its memory with new random words all the time and compares
# all of it. Its rounds are also timed while host memory is made ready.
#
#   tests/gpu/first_suspend.sh DIST_DIR OUT_DIR [GIB]     GIB (36) of GPU memory; ROUNDS (3) of each
#   GPU=soft tests/gpu/first_suspend.sh …                 on softgpu with a small program
#
# Needs python3 with torch, and free host memory of three times GIB. Writes OUT_DIR/summary.txt,
# OUT_DIR/first_suspend.json and OUT_DIR/logs.tar.gz. Takes at most BUDGET_S (540) seconds.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
exec python3 "$here/first_suspend.py" "$@"
