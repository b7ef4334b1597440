#!/bin/sh
# Builds and runs the tests of one preset, or those of the tarball; more arguments go to ctest. Ends with
# ctest's own summary.
set -eu
. tools/lib.sh

preset=dev
targets=all
launch=
case ${1:-} in
  asan | tsan)
    preset=$1
    targets=unit_tests
    # ThreadSanitizer maps fixed regions and finds them taken where addresses are spread too far.
    [ "$1" = asan ] || ! setarch -R true 2>/dev/null || launch="setarch -R"
    shift
    ;;
  dist)
    shift
    exec tools/dist.sh "$@"
    ;;
  dev) shift ;;
esac
tools/build.sh "$preset" --target $targets
exec $launch ctest --preset "$preset" "$@"
