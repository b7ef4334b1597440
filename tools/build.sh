#!/bin/sh
# Builds one preset into build/PRESET. More arguments go to the build tool.
set -eu
. tools/lib.sh
. tools/packages.sh

preset=dev
case ${1:-} in
  dev | release | asan | tsan | fuzz)
    preset=$1
    shift
    ;;
  '' | -*) ;;
  *) die "there is no preset '$1': dev, release, asan, tsan and fuzz are" ;;
esac
tools/setup.sh --quiet
if [ "$preset" = fuzz ]; then
  [ -n "${STASIS_NO_SETUP:-}" ] || install_groups fuzz
  set -- --target fuzzers "$@"
fi
tree=build/$preset

# The build tool looks after everything but its presets and the CRIU that setup has built.
if [ -z "$(find "$tree/build.ninja" -newer CMakePresets.json -newer .cache/stamps/setup 2>/dev/null)" ]; then
  mkdir -p "$tree"
  cmake --preset "$preset" >"$tree/configure.log" 2>&1 || {
    grep -A 12 -E 'CMake Error|error:' "$tree/configure.log" >&2 || tail -n 20 "$tree/configure.log" >&2
    die "the build could not be configured; the whole output is in $tree/configure.log"
  }
fi
cmake --build "$tree" --parallel "$(jobs_here)" "$@"
