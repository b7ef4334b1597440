#!/bin/sh
# Unpacks OpenStack Swift of this Debian suite into .cache/swift, for a nightly test. Nothing is
# installed, so no service starts and no user is created.
set -eu
. tools/lib.sh
. tools/packages.sh

root=$cache/swift
work=$cache/swift-unpacked
if [ -d "$root" ]; then exit 0; fi

# shellcheck disable=SC2046  # one package a word
packages=$(to_download $(packages_of swift) | awk '{ print $2 }')
[ -n "$packages" ] || die "apt does not have all packages of the group swift in tools/packages.txt, or all are installed"
rm -rf "$work"
mkdir -p "$work/packages" "$work/root"
say "downloading OpenStack Swift and what it needs, $(echo "$packages" | wc -w) packages"
# shellcheck disable=SC2086  # one package a word
(cd "$work/packages" && apt-get download -qq $packages) >"$work/apt.log" 2>&1 || {
  tail -n 5 "$work/apt.log" >&2
  die "could not download the packages of Swift"
}
for package in "$work"/packages/*.deb; do dpkg-deb -x "$package" "$work/root"; done
mv "$work/root" "$root"
rm -rf "$work"
