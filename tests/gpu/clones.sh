#!/bin/sh
# Restores one image of a PyTorch program several times at the same time, with --new-pidns, and compares the times with
# those of a single restore: from the command to the first token. Measures the host memory of each further clone. Every
# clone compares all of its memory with hashes that it computed before the dump.
#
#   tests/gpu/clones.sh DIST_DIR OUT_DIR [GIB]   GIB (10) of GPU memory; CLONES (4); ROUNDS (3)
#   GPU=soft tests/gpu/clones.sh …               on softgpu, with 64M
#
# Needs a tarball from this checkout, root, python3 with torch and transformers, CLONES x (GIB + 1) of GPU memory, and a
# disk of GIB. Writes OUT_DIR/summary.txt, OUT_DIR/clones.json and OUT_DIR/logs.tar.gz. Takes at most BUDGET_S (400)
# seconds.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
exec python3 "$here/clones.py" "$@"
