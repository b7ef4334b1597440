#!/bin/sh
# Makes .cache/debian-SUITE.tar: the files of a minimal Debian with `man`, on which tests install
# the Debian packages. SUITE is bookworm (12) or trixie (13). With a second argument `slurm` it makes
# .cache/debian-SUITE-slurm.tar, with Slurm and what its tests need.
set -eu
. tools/lib.sh
. tools/packages.sh
. tools/debian_source.sh

suite=$1
case ${2:-} in
  '') root=$cache/debian-$suite.tar include=man-db ;;
  slurm)
    root=$cache/debian-$suite-slurm.tar
    include=$(packages_of slurm | tr '\n' ',')python3,procps,iproute2,e2fsprogs
    ;;
  *) die "there is no Debian with '$2'" ;;
esac
[ ! -f "$root" ] || exit 0
[ -n "${STASIS_NO_SETUP:-}" ] || install_groups dist
mkdir -p "$cache"
say "downloading a minimal Debian $suite${2:+ with $2}"
mmdebstrap --quiet --variant=minbase --include="$include" --aptopt='Acquire::Check-Valid-Until "false"' \
  --keyring=/usr/share/keyrings/debian-archive-keyring.gpg --format=tar "$suite" "$root.part" "$(mirror)" \
  >"$cache/debian-root.log" 2>&1 </dev/null || {
  tail -n 5 "$cache/debian-root.log" >&2
  die "mmdebstrap could not make a Debian $suite; the output is in .cache/debian-root.log"
}
mv "$root.part" "$root"
