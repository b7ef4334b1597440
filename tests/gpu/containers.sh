#!/bin/sh
# Checkpoints a GPU container with runc: with Stasis' plugin in CRIU, GPU data embedded and by reference, and with CRIU's
# own CUDA plugin.
#
#   tests/gpu/containers.sh DIST_DIR OUT_DIR [STEP...]     GPU=soft: on softgpu
#
# Needs root, runc, and a machine whose /etc/criu/default.conf may be written: it is restored at the end. The container
# has the machine's programs. LAYERS (32) and CACHE_GIB (20) set the size of the model, CRIU_IMAGES_DIR (/tmp) the
# folder of CRIU's images, CUDA_PLUGIN the folder of cuda_plugin.so.
# Writes OUT_DIR/summary.txt, OUT_DIR/containers.json and OUT_DIR/logs.tar.gz. Takes at most BUDGET_S (500) seconds.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
exec python3 "$here/containers.py" "$@"
