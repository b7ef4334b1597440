# shellcheck shell=sh disable=SC2154
# Installs groups of packages.txt. Sourced after lib.sh.

packages_of() {
  for group in "$@"; do
    awk -v group="$group" '$1 == group { print $2 }' tools/packages.txt
  done | sort -u
}

missing_of() {
  for package in $(packages_of "$@"); do
    status=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
    [ "$status" = "install ok installed" ] || echo "$package"
  done
}

# Prints the packages that apt would download, as "size package" lines; fails if apt does not know a
# package.
to_download() {
  apt-get install --no-install-recommends -qq --print-uris "$@" 2>/dev/null >"$cache/uris" || return 1
  awk '$1 ~ /^\047/ { split($2, name, "_"); print $3, name[1] }' "$cache/uris" | sort -rn
}

install_groups() {
  missing=$(missing_of "$@")
  [ -n "$missing" ] || return 0
  # shellcheck disable=SC2086  # one package a word
  set -- $missing
  have apt-get || die "packages cannot be installed, because this system has no apt-get. These Debian packages (or your system's equivalents) are missing:" \
    "$*" "Install them, then run again with STASIS_NO_SETUP=1."
  mkdir -p "$cache"
  if [ "$(id -u)" != 0 ] && ! have sudo; then
    die "packages are missing, and this account cannot install them, because it is not root and has no sudo. As root, run:" \
      "apt-get update && apt-get install --no-install-recommends -y $*" "and then the same ./run command again."
  fi
  if [ -z "${STASIS_LISTS_READ:-}" ]; then
    say "reading the package lists of your apt sources"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq ||
      note "some lists could not be read; continuing with the others"
    export STASIS_LISTS_READ=1
  fi
  downloads=$(to_download "$@") || {
    apt-get install --no-install-recommends -qq --print-uris "$@" >/dev/null || true
    die "apt does not have all of these packages: $*"
  }
  say "$(printf '%s\n' "$downloads" |
    awk 'NF { n++; sum += $1 } END { printf "downloading %d packages, %.0f MB in all (size in MB):", n, sum / 1e6 }')"
  printf '%s\n' "$downloads" | awk 'NF { printf "%s %.1f, ", $2, $1 / 1e6 }' | sed 's/, $//' | fold -s -w 96 | sed 's/^/   /'
  printf '\n'
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install --no-install-recommends -y -qq "$@" \
    >"$cache/apt-install.log" 2>&1 </dev/null || {
    tail -n 15 "$cache/apt-install.log" >&2
    die "apt-get could not install: $*" "the output is in .cache/apt-install.log"
  }
}
