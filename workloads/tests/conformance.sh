#!/bin/sh
# conformance.sh PROGRAM GOLDEN: checks that twenty rounds print the expected lines, which are the
# same on every GPU, and that one damaged byte is detected. Exit code 77: skipped.
set -eu
program=$1
golden=$2
# Separate GPUs for this test.
SOFTGPU_DIR=$(mktemp -d)
export SOFTGPU_DIR
trap 'rm -rf "$SOFTGPU_DIR"' EXIT

out=$("$program" --rounds 20 --interval 0) || {
  case $out in
    *'FAILED: io_uring_setup'*)
      echo "SKIPPED: this machine forbids io_uring (${out##*: })"
      exit 77
      ;;
  esac
  echo "$program failed: $(printf '%s\n' "$out" | tail -n 3)"
  exit 1
}
printf '%s\n' "$out" | diff "$golden" - || {
  echo "$program prints other lines than $golden"
  exit 1
}

if out=$("$program" --rounds 3 --interval 0 --sabotage 2>&1); then
  echo "$program did not notice a damaged byte"
  exit 1
fi
printf '%s\n' "$out" | grep -q '^FAILED: ' || {
  echo "$program died over a damaged byte instead of reporting it: $out"
  exit 1
}
