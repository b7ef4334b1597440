#!/bin/sh
# Builds a minimal static libcurl in .cache/curl from Debian's source archive: HTTP and HTTPS, with the static OpenSSL
# that the programs contain anyway. Debian's own libraries cannot be used: the static one needs twenty others, and the
# shared one loads a second OpenSSL, which breaks TLS. With --arch arm64 it builds the same in .cache/arm64/curl, with
# the libraries of tools/arm64_sysroot.sh.
set -eu
. tools/lib.sh
. tools/packages.sh
. tools/debian_source.sh

choose_arch "$@"
least=7.85 # CURLOPT_PROTOCOLS_STR
tested=$(awk '!/^#/ { print $2; exit }' tools/curl.table)
prefix=$place/curl
work=$place/curl-build
stamp=curl${for:+-arm64}
now=$(stamp_of tools/curl.sh tools/curl.table cmake/hardening.table)
if is_stamped "$stamp" "$now" && [ -f "$prefix/lib/libcurl.a" ]; then exit 0; fi

# Options that a version does not know are ignored.
without="zlib brotli zstd libpsl libidn2 nghttp2 nghttp3 ngtcp2 libgsasl libssh libssh2 librtmp gssapi ca-bundle ca-path"
disabled="shared dependency-tracking manual docs libcurl-option get-easy-options headers-api openssl-auto-load-config
  ares ldap ldaps ftp file ipfs rtsp dict telnet tftp pop3 imap smb smtp gopher mqtt websockets doh
  netrc cookies mime form-api hsts alt-svc ntlm negotiate-auth kerberos-auth digest-auth aws tls-srp unix-sockets"
enabled="static symbol-hiding threaded-resolver ipv6 unity"

# with PREFIX WORD...: prints each word with the prefix.
with() {
  before=$1
  shift
  printf " $before%s" "$@"
}

# hardening PATTERN: prints the flags of cmake/hardening.table that match.
hardening() {
  awk -v machine="$arch" -v pattern="$1" \
    '($1 == "any" || $1 == machine) && $2 ~ pattern { printf "%s ", $2 }' cmake/hardening.table
}

# Without CURL_STATICLIB, libcurl's functions would be visible to other libraries in the process.
# shellcheck disable=SC2046,SC2086  # one option a word
build() {
  use_ccache
  cd "$work"/curl-*/
  if cross; then
    sysroot=$place/sysroot
    export CC="aarch64-linux-gnu-gcc --sysroot=$sysroot" PKG_CONFIG_SYSROOT_DIR="$sysroot" \
      PKG_CONFIG_LIBDIR="$sysroot/usr/lib/aarch64-linux-gnu/pkgconfig"
    set -- --host=aarch64-linux-gnu
  fi
  ./configure "$@" --quiet --with-openssl --with-pic $(with --without- $without) $(with --disable- $disabled) \
    $(with --enable- $enabled) CPPFLAGS="$preprocessor_flags -DCURL_STATICLIB" CFLAGS="-O2 $compiler_flags"
  make -C lib -j "$(jobs_here)" libcurl.la
}

mkdir -p "$cache"
install_groups curl
kept_source curl "$tested" "$prefix/share" || kept_source curl "$tested" "$cache/curl/share" || fetch_source curl "$least" ||
  die "curl $least or newer could not be downloaded (see $work/apt.log)." \
    "Check that this machine can reach a Debian mirror, then run the same ./run command again."
say "building libcurl $found$for into ${prefix#"$PWD/"}"
tar -C "$work" -xf "$archive"
preprocessor_flags=$(hardening '^-[DU]')
compiler_flags=$(hardening '^-[^DU]')
(build) >"$work/make.log" 2>&1 || {
  tail -n 15 "$work/make.log" >&2
  die "libcurl $found could not be built; the output is in $work/make.log"
}
rm -rf "$prefix"
mkdir -p "$prefix/lib" "$prefix/include/curl" "$prefix/share"
cp "$work"/curl-*/lib/.libs/libcurl.a "$prefix/lib/"
cp "$work"/curl-*/include/curl/*.h "$prefix/include/curl/"
cp "$work"/curl-*/COPYING "$archive" "$prefix/share/"
rm -rf "$work"
set_stamp "$stamp" "$now"
