#!/bin/sh
# protocol.sh WORKLOADS_DIR: checks that a program without a round limit stops at SIGTERM and
# verifies itself, that the counter answers UDP packets, and that wrong options are rejected.
set -eu
dir=$1
work=$(mktemp -d)
export SOFTGPU_DIR="$work/gpus"
mkdir "$SOFTGPU_DIR"
pid=
trap 'kill -9 $pid 2>/dev/null || :; rm -rf "$work"' EXIT

fail() {
  echo "$*; the program's output:"
  cat "$work/out"
  exit 1
}

# Waits for a line of the running program.
expect() {
  tries=0
  until grep -q "$1" "$work/out"; do
    kill -0 "$pid" 2>/dev/null || grep -q "$1" "$work/out" || fail "it ended before it said '$1'"
    tries=$((tries + 1))
    [ $tries -lt 1000 ] || fail "no '$1' in 20 s"
    sleep 0.02
  done
}

ends_well() {
  code=0
  wait "$pid" || code=$?
  [ $code -eq 0 ] || fail "exit code $code"
  [ "$(tail -n 1 "$work/out")" = EXIT-SUCCESS ] || fail "no EXIT-SUCCESS at the end"
  pid=
}

# Empty the file here, because the program's redirection may happen after the first check.
: >"$work/out"
"$dir/vector" --interval 10 --memory 5M >>"$work/out" &
pid=$!
expect '^ROUND 3 '
kill -TERM "$pid"
ends_well

: >"$work/out"
"$dir/counter" --memory 3M >>"$work/out" &
pid=$!
expect '^READY$'
port=$(sed -n 's/^PORT //p' "$work/out")
ask() {
  answer=$("$dir/udp_send" --timeout 10000 "$port" "$1") || fail "no answer to '$1'"
  [ "$answer" = "$2" ] || fail "'$1' was answered '$answer', not '$2'"
}
ask hello 101
ask hello 102
answer=$("$dir/udp_send" "$port" verify)
case $answer in
  'OK '*) ;;
  *) fail "'verify' was answered '$answer'" ;;
esac
ask hello 103
ask quit BYE
ends_well
grep -q '^ROUND 3 0000000000000067$' "$work/out" || fail "the third round is missing"

"$dir/udp_send" --timeout 200 "$port" hello 2>/dev/null && fail "an answer without a listener"
code=0
"$dir/vector" --no-such-option >"$work/out" 2>&1 || code=$?
[ $code -eq 2 ] || fail "exit code $code for a wrong option"
