#!/bin/sh
# A short demonstration: a GPU program is suspended, dumped, killed and restored. Takes no input,
# shows real commands with their output, cleans up, and fails if a step does not do what it says.
#
#   tools/demo.sh [PRESET]      uses build/PRESET (default: release); STASIS_DEMO_BUILD names another directory
set -eu
cd "$(dirname "$0")/.."
. tools/lib.sh

build=${STASIS_DEMO_BUILD:-$PWD/build/${1:-release}}
workloads=$build/workloads
PATH=$build/bin:$PATH
have stasis || die "there is no stasis in $build/bin. To build it:" "./run build"

work=$(mktemp -d "${TMPDIR:-/tmp}/stasis-demo-XXXXXX")
export STASIS_STATE_DIR="$work/state"
stage=start

clean_up() {
  code=$?
  trap - EXIT INT TERM
  for job in first second; do
    if stasis kill "$job" --signal KILL >/dev/null 2>&1; then
      stasis wait "$job" >/dev/null 2>&1 || true
    fi
  done
  stasis recover >/dev/null 2>&1 || true
  # The file system for GPU data may be mounted below the directory and would prevent its removal.
  # `arena free` ends the resident mover, which has files of it open.
  stasis arena free >/dev/null 2>&1 || true
  umount "$work/state/run/arena" 2>/dev/null || true
  rm -rf "$work"
  [ $code -eq 0 ] || printf '\nThe demo failed at: %s\n' "$stage" >&2
  exit $code
}
trap clean_up EXIT
trap 'exit 130' INT TERM

if [ -t 1 ]; then bold=$(printf '\033[1m') plain=$(printf '\033[0m'); else bold='' plain=''; fi
began=$(date +%s)

step() {
  stage=$1
  printf '\n%s%s%s\n' "$bold" "$1" "$plain"
}
tell() { printf '   %s\n' "$@"; }
wrong() {
  printf '   But: %s\n' "$*" >&2
  exit 1
}

# expect CODE COMMAND...: shows and runs the command, shows its output, and sets $said to this output.
expect() {
  wanted=$1
  shift
  line="\$ $*"
  printf '%s\n' "$line" | sed "s#$workloads/##g; s#$work/##g"
  code=0
  said=$("$@" 2>&1 </dev/null) || code=$?
  [ -z "$said" ] || printf '%s\n' "$said" | sed "s#$work/##g; s/^/    /"
  [ "$code" -eq "$wanted" ] || wrong "the exit code is $code, not $wanted."
}
show() { expect 0 "$@"; }

# Waits for a line of a job's output. `stasis logs -f` cannot be used, because it ends only with the
# job.
await_ready() {
  tries=0
  until stasis logs "$1" | grep -q '^READY$'; do
    tries=$((tries + 1))
    [ $tries -lt 600 ] || wrong "$1 is not ready after a minute: $(stasis logs "$1" | tail -n 3)"
    sleep 0.1
  done
}

# ask JOB REPLY: sends a packet to the counter and compares its answer.
ask() {
  port=$(stasis logs "$1" | sed -n 's/^PORT //p')
  printf '$ udp_send %s hello\n' "$port"
  said=$("$workloads/udp_send" --timeout 20000 "$port" hello) || wrong "$1 does not answer."
  printf '    %s\n' "$said"
  [ "$said" = "$2" ] || wrong "$1 answers $said, not $2."
}

verify() {
  port=$(stasis logs "$1" | sed -n 's/^PORT //p')
  said=$("$workloads/udp_send" --timeout 60000 "$port" verify) || wrong "$1 does not answer."
  case $said in
    OK*) tell "It compared every byte of its GPU memory: nothing has changed." ;;
    *) wrong "its GPU memory has changed: $said" ;;
  esac
}

# Chooses a GPU: a real one whose driver supports checkpoints, else softgpu.
if stasis gpu ls --json 2>/dev/null | tr -d ' \n' | grep -q '"can_checkpoint":true.*"kind":"nvidia"'; then
  gpu=real
  first=2G second=3G
  about="an NVIDIA GPU of this machine"
else
  gpu=softgpu
  export LD_LIBRARY_PATH="$build/lib/softgpu"
  export SOFTGPU_DIR="$work/gpu"
  available=$(awk '/^MemAvailable/ { print int($2 / 1024) }' /proc/meminfo)
  if [ "$available" -ge 12000 ]; then
    export SOFTGPU_MEMORY=8G
    first=1700M second=6500M
  else
    export SOFTGPU_MEMORY=2G
    first=512M second=1700M
  fi
  about="softgpu, a CUDA driver that keeps its ${SOFTGPU_MEMORY%G} GiB of GPU memory in this machine's RAM"
fi

printf '%sStasis: a GPU program is suspended, saved, killed and brought back%s\n' "$bold" "$plain"
tell "The GPU: $about."
[ $gpu = real ] || tell "No GPU with a driver that can checkpoint was found, so only the GPU is simulated."
[ "${available:-99999}" -ge 12000 ] || tell "(2 GiB instead of 8, because only $available MiB of RAM are free.)"

# The reasons why this machine cannot dump; empty if it can.
missing=
if ! checked=$(stasis check 2>&1); then
  missing=$(printf '%s\n' "$checked" | grep '^cannot' || true)
fi

step "1. A job uses the GPU: a counter with $first of memory that adds one for each packet"
show stasis run --job first -- "$workloads/counter" --memory $first
await_ready first
ask first 101
show stasis gpu ls

step "2. The job gives up its GPU memory; its process stays"
show stasis suspend first
show stasis ps

step "3. Another job takes the GPU: $second, which would not fit beside the first"
if [ $gpu = real ]; then
  tell "(On this GPU it might fit: a job that fills the GPU would take minutes.)"
else
  tell "$(stasis gpu ls | grep ' free of ' | head -n 1 | sed 's/.* \([0-9.]* [GM]iB free of\)/Now there is \1/')."
fi
show stasis run --job second -- "$workloads/counter" --memory $second
[ $gpu = real ] || tell "(It fills its memory with random words in this machine's RAM, which takes a while.)"
await_ready second
ask second 101
if [ $gpu = softgpu ]; then
  tell "The first job cannot be resumed now. The message gives the reason, and the job stays suspended:"
  expect 1 stasis resume first
fi
show stasis kill second --signal KILL
expect 137 stasis wait second

step "4. The first job takes the GPU back and continues"
show stasis resume first
show stasis ps

if [ -n "$missing" ]; then
  step "5. Skipped: dump, kill -9, restore"
  tell "Saving a program to disk needs CRIU, which does not work here for these reasons:"
  printf '%s\n' "$missing" | sed 's/^/   /'
  tell "To see all steps, run the demo as root on a real or virtual machine, or in a privileged container."
else
  step "5. The job is saved to disk while it runs, then killed"
  show stasis dump first --name saved --leave-running
  pid=$(stasis ps --json | tr -d ' \n' | sed -n 's/.*"id":"first"[^}]*"pid":\([0-9]*\).*/\1/p')
  show kill -9 "$pid"
  expect 137 stasis wait first

  step "6. The job is restored from disk with the same process id and its count"
  show stasis restore first
  ask first 102
  verify first

  step "7. One byte of the image is changed, and the restore rejects the image"
  show stasis kill first --signal KILL
  expect 137 stasis wait first
  file=$(find "$STASIS_STATE_DIR/data/images/saved" -type f -size +1M | sort | head -n 1)
  [ -n "$file" ] || wrong "there is no large file in the image."
  byte=$(od -An -tu1 -j 654321 -N 1 "$file" | tr -d ' ')
  # shellcheck disable=SC2059
  printf "\\$(printf '%03o' $((byte ^ 1)))" | dd of="$file" bs=1 seek=654321 conv=notrunc 2>/dev/null
  tell "(byte 654321 of ${file#"$work/"}: $byte is $((byte ^ 1)) now)"
  expect 1 stasis restore first
fi

printf '\n%sAll steps succeeded, in %s s.%s\n' "$bold" "$(($(date +%s) - began))" "$plain"
if [ $gpu = softgpu ]; then
  tell "The times above are softgpu's: they show that it works, and say nothing about a GPU."
  tell "docs/measurements/ has measurements on real GPUs."
fi
stage=end
