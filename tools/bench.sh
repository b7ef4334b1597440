#!/bin/sh
# Measures: `stasis bench` from a release build, with the arguments that it gets. Where no GPU can be
# suspended it runs on softgpu, to show that it works; the times mean nothing there.
set -eu
cd "$(dirname "$0")/.."
. tools/lib.sh

tools/build.sh release >&2
build=$PWD/build/release
if ! "$build/bin/stasis" gpu ls --json 2>/dev/null | tr -d ' \n' | grep -q '"can_checkpoint":true'; then
  work=$(mktemp -d "${TMPDIR:-/tmp}/stasis-bench-XXXXXX")
  trap 'rm -rf "$work"' EXIT
  export LD_LIBRARY_PATH="$build/lib/softgpu" SOFTGPU_DIR="$work"
  note "no GPU here that can be suspended: softgpu, and --size 256MiB when you name none" >&2
  [ $# -gt 0 ] || set -- --size 256MiB --allocation 16MiB
fi
"$build/bin/stasis" bench "$@"
