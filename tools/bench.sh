#!/bin/sh
# Runs `stasis bench` from a release build with the given arguments. If this machine has no GPU that
# can be suspended, the bench runs on softgpu. Then its times are meaningless.
set -eu
cd "$(dirname "$0")/.."
. tools/lib.sh

tools/build.sh release >&2
build=$PWD/build/release
if ! "$build/bin/stasis" gpu ls --json 2>/dev/null | tr -d ' \n' | grep -q '"can_checkpoint":true'; then
  work=$(mktemp -d "${TMPDIR:-/tmp}/stasis-bench-XXXXXX")
  trap 'rm -rf "$work"' EXIT
  export LD_LIBRARY_PATH="$build/lib/softgpu" SOFTGPU_DIR="$work"
  note "this machine has no GPU that can be suspended: using softgpu, with --size 256MiB unless you give options" >&2
  [ $# -gt 0 ] || set -- --size 256MiB --allocation 16MiB
fi
"$build/bin/stasis" bench "$@"
