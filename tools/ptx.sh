#!/bin/sh
# Makes the GPU kernel's PTX anew from its source. With --check: whether what is checked in is what the
# compiler makes, by whose version it is bound.
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
# sm_70 is the oldest that still is compiled for, ISA 6.3 what every driver knows since 2018; a driver
# compiles it for the GPU that it finds. No toolkit is looked for, not even one that is there.
clang++-16 -x cuda --cuda-device-only --cuda-gpu-arch=sm_70 --cuda-path=/nonexistent -nocudainc -nocudalib \
  -Xclang -target-feature -Xclang +ptx63 -std=c++17 -O3 -Wall -Wextra -Werror -Wno-unknown-cuda-version \
  -I softgpu/include -I src -S -o "$made" "$folder/block_names.cu"
case ${1:-} in
  --check)
    cmp -s "$made" "$folder/block_names.ptx" || die "$folder/block_names.ptx is not what clang 16 makes of block_names.cu" \
      "./run ptx makes it anew."
    ;;
  '')
    cat "$made" >"$folder/block_names.ptx"
    note "$folder/block_names.ptx"
    ;;
  *) die "the one option is --check" ;;
esac
