# shellcheck shell=sh
# Shared functions of the scripts behind ./run. Sourced from the root of the checkout.

# shellcheck disable=SC2034
cache=$PWD/.cache

say() { printf '== %s\n' "$*"; }
note() { printf '   %s\n' "$*"; }
die() {
  printf 'run: %s\n' "$1" >&2
  shift
  for line in "$@"; do printf '     %s\n' "$line" >&2; done
  exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }

# Runs a command as root, or prints the command for an administrator.
as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif have sudo; then
    sudo "$@"
  else
    die "this step needs root, and sudo is not installed. As root, run:" "$*" "and then the same ./run command again."
  fi
}

# Reads the machine for which a script builds from its argument: nothing, or --arch arm64. Sets $arch,
# $for ("" or " for arm64"), $place, the folder of what is built for it, and $emulator, the beginning
# of a command line that runs its programs here.
choose_arch() {
  arch=$(uname -m)
  place=$cache
  for=
  emulator=
  case "${1:-} ${2:-}" in
    ' ') ;;
    '--arch arm64')
      [ "$arch" != aarch64 ] || return 0
      arch=aarch64
      place=$cache/arm64
      for=' for arm64'
      emulator="qemu-aarch64 -L $place/sysroot"
      ;;
    *) die "unknown arguments: $*" "the only other machine is --arch arm64" ;;
  esac
}
cross() { [ -n "$for" ]; }

# A stamp records that a step was done for exactly these inputs.
stamp_of() { cat "$@" /etc/os-release 2>/dev/null | sha256sum | cut -c1-32; }
is_stamped() { [ "$(cat "$cache/stamps/$1" 2>/dev/null)" = "$2" ]; }
set_stamp() {
  mkdir -p "$cache/stamps"
  printf '%s\n' "$2" >"$cache/stamps/$1"
}

# One job per processor, but no more than memory allows (1 GiB each).
jobs_here() {
  awk -v cpus="$(nproc)" '/^MemAvailable/ { n = int($2 / 1048576) }
    END { if (n < 1) n = 1; print (n < cpus) ? n : cpus }' /proc/meminfo
}
