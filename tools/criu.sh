#!/bin/sh
# Provides a working CRIU: the system's if it is new enough. Otherwise it builds one in .cache/criu
# from Debian's source archive, with the CUDA plugin, which only tests use, and with the plugin for
# AMD GPUs if libdrm's headers are installed. With --own the system's
# CRIU is ignored (for the tarball). --is-there only reports, by its exit status, whether a suitable
# CRIU exists. With --arch arm64 it builds one in .cache/arm64/criu, with the libraries of
# tools/arm64_sysroot.sh.
set -eu
. tools/lib.sh
. tools/packages.sh
. tools/debian_source.sh

mkdir -p "$cache"
least=4.1
# Since Linux 6.16 the kernel reports sockets other than unix ones in a way that only CRIU 4.2
# understands: older versions cannot dump a program with a UDP or TCP socket.
wanted=$least
[ "$(printf '6.16\n%s\n' "$(uname -r)" | sort -V | head -n 1)" != 6.16 ] || wanted=4.2
if [ "${1:-}" = --arch ]; then choose_arch "$@"; else choose_arch; fi
prefix=$place/criu
work=$place/criu-build

version_of() { "$1" --version 2>/dev/null | awk '$1 == "Version:" { print $2 }'; }

# Returns false if CRIU's own check fails. The check needs root; without root it is skipped.
checks_out() {
  as=
  if [ "$(id -u)" != 0 ]; then
    if have sudo && sudo -n true 2>/dev/null; then as="sudo -n"; else return 0; fi
  fi
  # shellcheck disable=SC2024  # the log is ours
  ${as:-} "$1" check >"$cache/criu-check.log" 2>&1
}

build_own() {
  install_groups criu
  kept_source criu "$wanted" "$prefix/share" || kept_source criu "$wanted" "$cache/criu/share" || fetch_source criu "$least" ||
    die "CRIU $least or newer could not be downloaded (see $work/apt.log)." \
      "Install it yourself, or set STASIS_CRIU to its path. To build without CRIU:" \
      "STASIS_NO_SETUP=1 ./run build"
  say "building CRIU $found$for into ${prefix#"$PWD/"}"
  tar -C "$work" -xf "$archive"
  use_ccache
  # Only CRIU's page server needs GnuTLS, which would add nine libraries.
  if cross; then
    # protoc is this machine's, and reads this machine's descriptor.proto.
    set -- ARCH=aarch64 CROSS_COMPILE=aarch64-linux-gnu- CC="aarch64-linux-gnu-gcc --sysroot=$place/sysroot" \
      GOOGLE_INCLUDE=/usr/include/google/protobuf
    export PKG_CONFIG_SYSROOT_DIR="$place/sysroot" \
      PKG_CONFIG_LIBDIR="$place/sysroot/usr/lib/aarch64-linux-gnu/pkgconfig"
  fi
  make -C "$work"/criu-*/ "$@" -j "$(jobs_here)" NO_GNUTLS=1 criu cuda_plugin >"$work/make.log" 2>&1 || {
    tail -n 15 "$work/make.log" >&2
    die "CRIU $found could not be built; the output is in $work/make.log"
  }
  rm -rf "$prefix"
  mkdir -p "$prefix/sbin" "$prefix/share" "$prefix/lib"
  cp "$work"/criu-*/criu/criu "$prefix/sbin/criu"
  cp "$work"/criu-*/plugins/cuda/cuda_plugin.so "$plugin"
  if has_amd_headers; then
    mkdir -p "${amd_plugin%/*}"
    if make -C "$work"/criu-*/ "$@" -j "$(jobs_here)" NO_GNUTLS=1 amdgpu_plugin >>"$work/make.log" 2>&1; then
      cp "$work"/criu-*/plugins/amdgpu/amdgpu_plugin.so "$amd_plugin"
    else
      # Only HIP programs need it.
      tail -n 15 "$work/make.log" >"$no_amd_plugin"
      note "CRIU's plugin for AMD GPUs could not be built; see ${no_amd_plugin#"$PWD/"}"
    fi
  fi
  cp "$work"/criu-*/COPYING "$prefix/share/COPYING"
  cp "$archive" "$prefix/share/"
  rm -rf "$work"
}

own=$prefix/sbin/criu
plugin=$prefix/lib/cuda_plugin.so
# In a folder of its own, because CRIU loads every plugin of a folder.
amd_plugin=$prefix/lib/amdgpu/amdgpu_plugin.so
has_amd_headers() { ! cross && pkg-config --exists libdrm_amdgpu; }
no_amd_plugin=$prefix/lib/amdgpu-failed.log
has_amd_plugin() { [ -f "$amd_plugin" ] || [ -f "$no_amd_plugin" ] || ! has_amd_headers; }
own_will_do() { [ -x "$own" ] && [ -f "$plugin" ] && has_amd_plugin && at_least "$(version_of "$own")" "$least"; }
system_will_do() {
  system=$(PATH=$PATH:/usr/sbin:/sbin command -v criu) && version=$(version_of "$system") &&
    [ -n "$version" ] && at_least "$version" "$wanted" && checks_out "$system"
}

if cross; then
  { [ -x "$own" ] && [ -f "$plugin" ]; } || build_own
  exit 0
fi
case ${1:-} in
  --is-there)
    own_will_do || system_will_do
    exit
    ;;
  --own) ;;
  *)
    if system_will_do; then
      note "CRIU: the system's $version"
      rm -rf "$prefix"
      exit 0
    fi
    ;;
esac
own_will_do || build_own
[ -f "$amd_plugin" ] ||
  note "CRIU's plugin for AMD GPUs is not built, because the headers of libdrm are missing (libdrm-dev)"
at_least "$(version_of "$own")" "$wanted" ||
  note "CRIU $(version_of "$own") cannot save sockets on this kernel; version $wanted can, but could not be downloaded"
if checks_out "$own"; then
  note "CRIU: version $(version_of "$own") in .cache/criu"
else
  note "CRIU: version $(version_of "$own") in .cache/criu, but it does not work on this machine."
  note "Building continues, but processes cannot be saved and restored. CRIU reports:"
  tail -n 3 "$cache/criu-check.log" | sed 's/^/     /'
fi
