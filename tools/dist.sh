#!/bin/sh
# Packs the files that the release preset installs, CRIU, and all libraries that depend on this
# distribution into one tarball, with the sources of CRIU and libcurl; makes Debian packages of the
# same files (tools/deb.sh); and checks both. The checks are in tests/dist/. With --pack nothing is
# checked. With --arch arm64 it makes both for arm64 only (docs/arm64.md); checks that need a machine
# are then left to tools/arm64.sh.
set -eu
. tools/lib.sh
. tools/packages.sh

if [ "${1:-}" = --arch ]; then
  choose_arch "$@"
  shift 2
else
  choose_arch
fi
[ -n "${STASIS_NO_SETUP:-}" ] || install_groups dist
if cross; then
  preset=arm64 root=$place/sysroot strip=aarch64-linux-gnu-strip
  tools/build.sh "$preset"
else
  preset=release root='' strip=strip
  tools/build.sh "$preset"
  tools/criu.sh --own
fi

version=$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' "build/$preset/CMakeCache.txt")
name=stasis-$version-linux-$arch
tree=build/dist/$name
# gzip, because a minimal Ubuntu has no xz.
tarball=dist/$name.tar.gz
limit=$((60 * 1024 * 1024))

# Only glibc comes from the target machine.
from_the_system='^(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util))\.so\.[0-9]+$'

# Prints the path of a library of the sysroot, and those of the libraries that it needs: with
# repetitions, one a line.
libraries_in_sysroot() {
  readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | grep -Ev "$from_the_system" | while read -r soname; do
    path=$root/usr/lib/aarch64-linux-gnu/$soname
    [ -e "$path" ] || die "$1 needs the library $soname, which is not in $root"
    printf '%s\n' "$path"
    libraries_in_sysroot "$path"
  done
}

# Prints the libraries of CRIU, including indirect ones: one path a line.
libraries() {
  if cross; then
    libraries_in_sysroot "$1" | sort -u
    return
  fi
  ldd "$1" | awk '$2 == "=>" { print $1, $3 }' | while read -r soname path; do
    [ "$path" != not ] || die "$1 needs the library $soname, which is not installed"
    printf '%s\n' "$soname" | grep -Eq "$from_the_system" || printf '%s\n' "$path"
  done
}

# dpkg knows a file by the path in its package, with or without /usr. A sysroot lists the packages of
# its libraries.
package_of() {
  if cross; then
    awk -v file="$(basename "$(readlink -f "$1")")" '$2 == file { print $1; exit }' "$root/owners"
    return
  fi
  file=$(readlink -f "$1")
  dpkg -S "$file" "${file#/usr}" 2>/dev/null | sed 's/:.*//' | head -n 1
}

# licence PACKAGE: copies the licence of an included package, and adds the package, with its version
# and source package, to a list.
licence() {
  mkdir -p "$tree/share/licenses/$1"
  cp "$root/usr/share/doc/$1/copyright" "$tree/share/licenses/$1/"
  if cross; then
    grep "^$1 " "$root/packages" >>"$tree/share/licenses/packages"
    return
  fi
  dpkg-query -W -f '${Package} ${Version}, source package ${source:Package} ${source:Version}\n' "$1" |
    head -n 1 >>"$tree/share/licenses/packages"
}

rm -rf build/dist
mkdir -p "$tree/lib" "$tree/libexec" dist
cmake --install "build/$preset" --prefix "$PWD/$tree" --strip >"build/dist/install.log" ||
  die "the release build could not be installed; see build/dist/install.log"

# CMake installs this folder as it is.
find "$tree/lib/softgpu" -type f -exec "$strip" --strip-unneeded {} +
cp "$place/criu/sbin/criu" "$tree/libexec/criu"
"$strip" "$tree/libexec/criu"
# RPATH is used instead of RUNPATH, because it also applies to libraries of libraries, and comes
# before the user's LD_LIBRARY_PATH.
# shellcheck disable=SC2016  # expanded by the loader, not the shell
patchelf --force-rpath --set-rpath '$ORIGIN/../lib' "$tree/libexec/criu"
for part in criu curl; do
  mkdir -p "$tree/share/licenses/$part"
  cp "$place/$part/share/"* "$tree/share/licenses/$part/"
done
amd_plugin=$tree/lib/stasis/criu-amdgpu/amdgpu_plugin.so
plugin_libraries=
if cross; then
  rm -f "$amd_plugin"
elif [ -f "$amd_plugin" ]; then
  "$strip" --strip-unneeded "$amd_plugin"
  # shellcheck disable=SC2016
  patchelf --force-rpath --set-rpath '$ORIGIN/../..' "$amd_plugin"
  plugin_libraries=$(libraries "$place/criu/lib/amdgpu/amdgpu_plugin.so")
else
  note "the tarball has no plugin of CRIU for AMD GPUs, because libdrm-dev is missing"
fi
for library in $(printf '%s\n' "$(libraries "$place/criu/sbin/criu")" "$plugin_libraries" | sort -u); do
  cp -L "$library" "$tree/lib/"
  # shellcheck disable=SC2016
  patchelf --force-rpath --set-rpath '$ORIGIN' "$tree/lib/${library##*/}"
  package=$(package_of "$library")
  [ -n "$package" ] || die "no package owns $library, so its licence is unknown"
  licence "$package"
done
for package in $(packages_of inside); do licence "$package"; done
cp -RL /usr/share/common-licenses "$tree/share/licenses/"
sort -u -o "$tree/share/licenses/packages" "$tree/share/licenses/packages"
for file in LICENSE README.md CHANGELOG.md; do
  [ ! -f "$file" ] || cp "$file" "$tree/share/"
done
# README and messages refer to docs/.
rm -rf "$tree/share/docs"
cp -R docs "$tree/share/"
find "$tree/share/docs" -name __pycache__ -prune -exec rm -r {} +
# shellcheck disable=SC2086  # the words of a command line
python3 -B tools/man_pages.py "$tree" docs "$tree/share/man" $emulator

contents=$(cd "$tree" && find . \( -type f -exec sha256sum {} + \) -o \( -type l -printf '%l %p\n' \) |
  sort | sha256sum | cut -c1-32)
if [ ! -f "$tarball" ] || ! is_stamped "dist-$arch" "$contents"; then
  say "packing $tarball"
  tar -C build/dist --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -cf - "$name" |
    gzip -9n >"$tarball.part"
  mv "$tarball.part" "$tarball"
  set_stamp "dist-$arch" "$contents"
fi
size=$(wc -c <"$tarball")
[ "$size" -le "$limit" ] || die "$tarball has $size bytes; the limit is $limit"

if cross; then
  debian=arm64
else
  debian=$(dpkg --print-architecture)
fi
packages=$contents-$(stamp_of packaging/debian/* tools/deb.sh)
if ! is_stamped "deb-$debian" "$packages" || [ ! -f "dist/stasis-softgpu_$version-1_$debian.deb" ]; then
  say "packing the Debian packages stasis and stasis-softgpu$for"
  if cross; then tools/deb.sh "$tree" "$version" --arch arm64; else tools/deb.sh "$tree" "$version"; fi
  set_stamp "deb-$debian" "$packages"
fi
[ "${1:-}" != --pack ] || exit 0

# Reports what was made.
summary() {
  for package in dist/stasis*_"$version"-1_"$debian".deb; do say "$package"; done
  say "$tarball: $(awk -v size="$size" 'BEGIN { printf "%.1f MB", size / 1e6 }')"
}

if cross; then
  say "checking the tarball and the packages, except what needs a machine"
  for check in unpack layout manual floor hardening libraries empty_environment remove; do
    STASIS_TARBALL=$PWD/$tarball STASIS_EMULATOR=$emulator python3 tests/dist/dist_test.py "$check" \
      "$PWD/build/dist/unpacked here" >"build/dist/$check.log" ||
      die "the check $check failed; see build/dist/$check.log"
  done
  python3 tests/dist/deb_test.py control none dist "$version" "$debian" >build/dist/control.log ||
    die "the check control failed; see build/dist/control.log"
  summary
  exit 0
fi
tools/debian_root.sh bookworm || note "the test dist.debian12 will be skipped"

say "checking the packages on a minimal Debian; and the tarball: unpacked elsewhere, with an empty environment and without this machine's libraries"
STASIS_TARBALL=$PWD/$tarball ctest --preset dist "$@"
summary
