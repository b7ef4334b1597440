#!/bin/sh
# Builds one preset in build/PRESET: its targets in CMakePresets.json. arm64 is the release preset for another machine.
# Further arguments are passed to the build tool.
set -eu
. tools/lib.sh
. tools/packages.sh

preset=release
case ${1:-} in
  release | arm64 | dev | asan | tsan)
    preset=$1
    shift
    ;;
  '' | -*) ;;
  *) die "there is no preset '$1'; the presets are release, arm64, dev, asan and tsan" ;;
esac
tools/setup.sh --quiet
case $preset in
  asan | tsan) [ -n "${STASIS_NO_SETUP:-}" ] || install_groups sanitizers ;;
  arm64)
    tools/arm64_sysroot.sh
    tools/curl.sh --arch arm64
    tools/criu.sh --arch arm64
    ;;
esac
tree=build/$preset

# The build tool tracks everything except the presets and what setup built.
if [ -z "$(find "$tree/build.ninja" -newer CMakePresets.json -newer .cache/stamps/setup 2>/dev/null)" ]; then
  mkdir -p "$tree"
  cmake --preset "$preset" >"$tree/configure.log" 2>&1 || {
    grep -A 12 -E 'CMake Error|error:' "$tree/configure.log" >&2 || tail -n 20 "$tree/configure.log" >&2
    die "the build could not be configured; the whole output is in $tree/configure.log"
  }
fi
cmake --build --preset "$preset" --parallel "$(jobs_here)" "$@"
! grep -q '^STASIS_SPANK_INCLUDE:PATH=.*-NOTFOUND$' "$tree/CMakeCache.txt" ||
  note "Slurm's plugin stasis.so was not built, because slurm/spank.h is missing (Debian: libslurm-dev)"
