#!/bin/sh
# conformance.sh PROGRAM GOLDEN: twenty rounds print the known lines, the same on every GPU; and one damaged
# byte is noticed, or the rest of what the program says would mean nothing. Exit code 77: skipped.
set -eu
program=$1
golden=$2
# GPUs of its own, whoever else tests here.
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
