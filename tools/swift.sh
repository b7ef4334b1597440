#!/bin/sh
# Unpacks OpenStack Swift of this Debian suite into .cache/swift, for a nightly test. Nothing is
# installed, so no service starts and no user is created.
set -eu
. tools/lib.sh
. tools/packages.sh

root=$cache/swift
work=$cache/swift-unpacked
wanted=$(packages_of swift)
if [ "$(cat "$root/wanted" 2>/dev/null)" = "$wanted" ]; then exit 0; fi

rm -rf "$work"
mkdir -p "$work/packages" "$work/root" "$work/archives/partial"
# With an empty archive folder, apt also lists packages that it has downloaded before.
# shellcheck disable=SC2086  # one package a word
packages=$(apt-get install --no-install-recommends -qq --print-uris -o Dir::Cache::archives="$work/archives" $wanted \
  2>"$work/apt.log" | awk '{ split($2, name, "_"); print name[1] }')
[ -n "$packages" ] || die "apt does not have all packages of the group swift in tools/packages.txt, or all are installed"
say "downloading OpenStack Swift and what it needs, $(echo "$packages" | wc -w) packages"
# shellcheck disable=SC2086  # one package a word
(cd "$work/packages" && apt-get download -qq $packages) >"$work/apt.log" 2>&1 || {
  tail -n 5 "$work/apt.log" >&2
  die "could not download the packages of Swift"
}
for package in "$work"/packages/*.deb; do dpkg-deb -x "$package" "$work/root"; done
echo "$wanted" >"$work/root/wanted"
rm -rf "$root"
mv "$work/root" "$root"
rm -rf "$work"
