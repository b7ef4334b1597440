#!/bin/sh
# Tests the cuda-checkpoint drop-in on a real GPU: compared with NVIDIA's own tool, call by call, and under CRIU's
# CUDA plugin, with programs that never had the agent and programs that did.
#
#   tests/gpu/dropin.sh DIST_DIR OUT_DIR
#
# NVIDIA_TOOL: NVIDIA's cuda-checkpoint (default: the one on PATH; without one that step is skipped).
# CUDA_PLUGIN: the folder of CRIU's cuda_plugin.so, of the same version as DIST_DIR/libexec/criu (.cache/criu/lib
# of the checkout by default; without one those steps are skipped).
# Needs root. Writes OUT_DIR/summary.txt, OUT_DIR/dropin.json and OUT_DIR/logs.tar.gz; GPU=soft runs it on softgpu.
# Takes at most BUDGET_S (300) seconds.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
exec python3 "$here/dropin.py" "$@"
