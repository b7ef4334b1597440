#!/bin/sh
# Measures images of PyTorch (Llama-8B shape and a cache) on a machine with a GPU, while it generates: the
# first dump to disk, the second, the pause with --leave-running, a dump to tmpfs, restores, suspends that copy
# only changes, and suspends that keep the context. Every result is compared with the undisturbed run, and the
# disk's speed is measured too.
#
#   tests/gpu/images.sh DIST_DIR OUT_DIR        LAYERS (32) and CACHE_GIB (20); SHM (/dev/shm): folder of the tmpfs;
#                                               PLAIN=yes: the driver's path and CRIU alone too (minutes);
#                                               SIZES=yes: sizes from 1 to 32 GiB
#   GPU=soft tests/gpu/images.sh …              on softgpu, with a small workload in PyTorch's place
#
# Writes OUT_DIR/summary.txt, OUT_DIR/images.json and OUT_DIR/logs.tar.gz. Takes at most BUDGET_S
# (350) seconds.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
exec python3 "$here/images.py" "$@"
