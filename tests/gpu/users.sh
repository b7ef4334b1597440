#!/bin/sh
# Tests a user without any right on a machine with a GPU. The user suspends and resumes a program directly, and has
# root's daemon dump and restore it. The program compares all its memory at its end.
#
#   tests/gpu/users.sh DIST_DIR OUT_DIR     as root; GPU=soft: on softgpu
#
# Writes OUT_DIR/summary.txt, OUT_DIR/users.json and OUT_DIR/logs.tar.gz. Takes at most BUDGET_S
# (120) seconds.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
exec python3 "$here/users.py" "$@"
