#!/bin/sh
# Runs each fuzzer for a limited time on its corpus. Inputs with new coverage are kept in
# .cache/fuzz for the next run; so are crashing inputs.
set -eu
. tools/lib.sh

seconds=20
case ${1:-} in
  '') ;;
  *[!0-9]*) die "the duration is a number of seconds, not '$1'" ;;
  *)
    seconds=$1
    shift
    ;;
esac
tools/build.sh asan --target fuzzers

if [ $# -eq 0 ]; then
  for fuzzer in build/asan/fuzz/*_fuzz; do
    set -- "$@" "$(basename "${fuzzer%_fuzz}")"
  done
fi
# Sanitizer reports need a symbolizer for function names.
ASAN_SYMBOLIZER_PATH=$(command -v llvm-symbolizer-16 || command -v llvm-symbolizer || true)
export ASAN_SYMBOLIZER_PATH
limit="-max_total_time=$seconds"
[ "$seconds" != 0 ] || limit=-runs=0

# fuzz NAME: runs a fuzzer. Writes its log and crashing inputs to .cache/fuzz/NAME, and adds NAME to
# the file `broken` if it fails.
fuzz() {
  name=$1
  kept=tests/fuzz/corpus/$name
  found=$cache/fuzz/$name
  # The fuzzer writes only to the first of its directories. By default it tries nothing longer than
  # 4 KiB, but the agent's largest packet has 11 KiB.
  if UBSAN_OPTIONS=print_stacktrace=1 "build/asan/fuzz/${name}_fuzz" "$limit" -timeout=10 \
    -rss_limit_mb=2048 -max_len=16384 -print_final_stats=1 "-artifact_prefix=$found/" \
    "$found/corpus" "$kept" >"$found/log" 2>&1; then
    note "$name: $(awk '/number_of_executed_units/ { n = $2 } / cov: / { for (i = 1; i < NF; ++i) if ($i == "cov:") c = $(i + 1) }
      END { printf "%d inputs, %d edges reached", n, c }' "$found/log")"
  else
    tail -n 60 "$found/log" >&2
    echo "$name" >>"$broken"
  fi
}

broken=$cache/fuzz/broken
mkdir -p "$cache/fuzz"
: >"$broken"
for name in "$@"; do
  [ -x "build/asan/fuzz/${name}_fuzz" ] || die "there is no fuzzer '$name'"
done
# Run one fuzzer for each CPU. Background processes do not get Ctrl-C, so it is passed on.
trap 'trap - TERM; kill 0' INT TERM
running=0
for name in "$@"; do
  mkdir -p "$cache/fuzz/$name/corpus"
  fuzz "$name" &
  running=$((running + 1))
  [ $((running % $(nproc))) -ne 0 ] || wait
done
wait
bad=$(tr '\n' ' ' <"$broken")
[ -z "$bad" ] || die "these fuzzers failed: $bad" \
  "The failing input is in .cache/fuzz/NAME; build/asan/fuzz/NAME_fuzz FILE runs it again." \
  "When you fix the error, add the input to tests/fuzz/corpus/NAME."
