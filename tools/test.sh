#!/bin/sh
# Builds one preset and runs its tests, or those of the tarball and the packages; further arguments
# are passed to ctest. Prints ctest's summary, and the failed and skipped cases inside test programs,
# which ctest does not see.
set -eu
. tools/lib.sh
. tools/packages.sh

preset=release
case ${1:-} in
  release | dev | nightly | asan | tsan)
    preset=$1
    shift
    ;;
  dist)
    shift
    exec tools/dist.sh "$@"
    ;;
esac
build=$preset
if [ "$preset" = nightly ]; then
  build=release
  # The dev preset compiles file by file, which proves that each file includes what it uses.
  tools/build.sh dev
fi
tools/build.sh "$build"
if [ "$preset" = nightly ] && [ -z "${STASIS_NO_SETUP:-}" ]; then
  tools/crun.sh || note "the test containers.crun will be skipped"
  tools/swift.sh || note "the test repository.swift will be skipped"
  install_groups nightly
  tools/dist.sh --pack
  tools/debian_root.sh trixie || note "the test dist.debian13 will be skipped"
  tools/debian_root.sh trixie slurm || note "the tests slurm.debian13.* will be skipped"
fi

launch=
# ThreadSanitizer maps fixed regions, which address space randomisation may already use.
if [ "$preset" = tsan ] && setarch -R true 2>/dev/null; then launch="setarch -R"; fi
rm -rf "build/$build/gtest"
# The tests need Debian's programs. Others of the same name may lack modules, or be scripts that take
# longer than some tests, like those of pyenv.
PATH=/usr/sbin:/usr/bin:/sbin:/bin:$PATH
export PATH
status=0
$launch ctest --preset "$preset" "$@" || status=$?
python3 tools/gtest_cases.py "build/$build/gtest" || status=1
exit $status
