#!/bin/sh
# Regenerates the GPU kernel's PTX from its source. With --check: verifies that the committed file
# equals the output of the compiler, whose version is fixed.
set -eu
. tools/lib.sh
. tools/packages.sh

if [ "${1:-}" = --check ]; then
  have clang++-16 || {
    echo "skipped: there is no clang++-16 (Debian's clang-16)"
    exit 77
  }
elif [ -z "${STASIS_NO_SETUP:-}" ]; then
  install_groups ptx
fi
folder=src/dataplane/kernel
made=$(mktemp)
trap 'rm -f "$made"' EXIT
# The driver compiles the PTX for its GPU. sm_70 is the oldest target that compilers still support,
# and every driver since 2018 supports ISA 6.3. An installed toolkit is not used.
clang++-16 -x cuda --cuda-device-only --cuda-gpu-arch=sm_70 --cuda-path=/nonexistent -nocudainc -nocudalib \
  -Xclang -target-feature -Xclang +ptx63 -std=c++17 -O3 -Wall -Wextra -Werror -Wno-unknown-cuda-version \
  -I softgpu/include -I src -S -o "$made" "$folder/block_hashes.cu"
case ${1:-} in
  --check)
    cmp -s "$made" "$folder/block_hashes.ptx" ||
      die "$folder/block_hashes.ptx differs from the output of clang 16 for block_hashes.cu" "./run ptx compiles it again."
    ;;
  '')
    cat "$made" >"$folder/block_hashes.ptx"
    note "wrote $folder/block_hashes.ptx"
    ;;
  *) die "the only option is --check" ;;
esac
