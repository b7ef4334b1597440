#!/bin/sh
# Shows on a machine with a GPU that programs under the agent give up their memory and take it back at the
# speed of PCIe with unchanged results. `stasis bench` measures the bare times of suspend and resume.
#
#   tests/gpu/fast_path.sh DIST_DIR OUT_DIR [STEP…]       all steps for one GPU, or those whose names begin with STEP
#   tests/gpu/fast_path.sh --gpus 2 DIST_DIR OUT_DIR      the steps for two
#   GPU=soft tests/gpu/fast_path.sh …                     on softgpu: the steps of its programs, small
#
# Needs python3 with torch, transformers, jax and cupy, and nvcc; a missing one fails its own steps.
# Writes OUT_DIR/summary.txt, OUT_DIR/fast_path.json and OUT_DIR/logs.tar.gz. Exit code 0: every step passed
# and every bar was met. Takes at most BUDGET_S (350) seconds; REPEAT (200) suspends in a row.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
exec python3 "$here/fast_path.py" "$@"
