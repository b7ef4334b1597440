#!/bin/sh
# Builds crun with CRIU support into .cache/crun, for a nightly test, because Debian's crun lacks this support. The
# sources are Debian's. libcriu comes from the CRIU that tools/criu.sh has built.
set -eu
. tools/lib.sh
. tools/debian_source.sh

suite=trixie
pinned=1.21
pinned_checksum=SHA256:4bfb700e764a4804a4de3ecf07753f4c391005356d60356df65d80ae0914c486
prefix=$cache/crun
work=$cache/crun-build
if [ -x "$prefix/crun" ]; then exit 0; fi

for criu in "$cache"/criu/share/criu_*.orig.tar.xz; do :; done
[ -f "$criu" ] || die "there is no source of CRIU in .cache/criu, because the system's CRIU is used"
if ! find_source "$suite" crun '\.orig\.tar\.gz'; then
  die "could not find the source of crun in Debian $suite (see .cache/crun-build/apt.log)"
fi
[ "$found $checksum" = "$pinned $pinned_checksum" ] ||
  die "Debian $suite has crun $found ($checksum); tools/crun.sh knows $pinned ($pinned_checksum)"
say "downloading crun $found, source archive of Debian $suite ($((size / 1000)) kB)"
download_source || die "could not download crun (see .cache/crun-build/apt.log)"

say "building crun $found with libcriu into .cache/crun"
tar -C "$work" -xJf "$criu"
tar -C "$work" -xzf "$archive"
rm -rf "$prefix"
mkdir -p "$prefix" "$work/include/criu"
{
  make -C "$work"/criu-*/ -j "$(jobs_here)" NO_GNUTLS=1 lib/c/libcriu.so
  cp "$work"/criu-*/lib/c/libcriu.so "$prefix/libcriu.so.2"
  (cd "$work"/criu-*/ && cp lib/c/criu.h images/rpc.proto images/rpc.pb-c.h criu/include/version.h "$work/include/criu/")
  criu_version=${criu##*/criu_}
  printf 'Name: CRIU\nDescription: RPC library\nVersion: %s\n' "${criu_version%.orig.tar.xz}" >"$work/criu.pc"
  cd "$work"/crun-*/
  PKG_CONFIG_PATH=$work CPPFLAGS=-I$work/include LDFLAGS=-Wl,-rpath,$prefix ./configure \
    --disable-systemd --disable-seccomp --enable-embedded-yajl --disable-shared --disable-dependency-tracking
  make -j "$(jobs_here)"
} >"$work/make.log" 2>&1 || {
  tail -n 15 "$work/make.log" >&2
  die "crun could not be built; the output is in .cache/crun-build/make.log"
}
cp "$work"/crun-*/crun "$prefix/crun"
rm -rf "$work"
