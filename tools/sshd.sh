#!/bin/sh
# Unpacks Debian's ssh server into .cache/sshd, for the tests of migrations. Installing the package
# would start a server on this machine.
set -eu
. tools/lib.sh
. tools/packages.sh

prefix=$cache/sshd
work=$cache/sshd-download
if [ -x "$prefix/sshd" ]; then exit 0; fi

install_groups sshd
download() { (cd "$work" && apt-get -o APT::Sandbox::User=root download -qq openssh-server) >"$work/apt.log" 2>&1; }
rm -rf "$work"
mkdir -p "$work"
# The package lists may be missing or too old.
download || as_root apt-get update -qq >/dev/null 2>&1 || true
for package in "$work"/openssh-server_*.deb; do :; done
[ -f "$package" ] || download || die "openssh-server could not be downloaded (see .cache/sshd-download/apt.log)." \
  "To build without it: STASIS_NO_SETUP=1 ./run build"
for package in "$work"/openssh-server_*.deb; do :; done
dpkg -x "$package" "$work/files"
rm -rf "$prefix"
mkdir -p "$prefix"
cp "$work/files/usr/sbin/sshd" "$prefix/"
version=${package##*/openssh-server_}
note "ssh server of the tests: version $(printf '%s\n' "${version%_*.deb}" | sed 's/^[0-9]*%3a//') in .cache/sshd"
rm -rf "$work"
