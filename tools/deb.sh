#!/bin/sh
# Packs the tree of the tarball, which tools/dist.sh has made, as the Debian packages stasis and
# stasis-softgpu in dist/:
#
#   tools/deb.sh TREE VERSION [--arch arm64]
#
# The tree without share/ is /usr/lib/stasis, because programs find each other relative to their own
# path; /usr/bin and /usr/sbin have links. docs/decisions/debian-package.md gives the reasons.
set -eu
. tools/lib.sh

tree=$1
version=$2
shift 2
choose_arch "$@"
DEB_HOST_ARCH=$(dpkg --print-architecture)
if cross; then
  DEB_HOST_ARCH=arm64
  set -- "-S$place/sysroot" # of glibc
else
  set --
fi
export DEB_HOST_ARCH
work=build/deb
main=$work/stasis
soft=$work/stasis-softgpu
share=$work/share # of the tree
# The date of the packages is that of the last change of CHANGELOG.md.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct -- CHANGELOG.md 2>/dev/null ||
  date -r CHANGELOG.md +%s)}
export SOURCE_DATE_EPOCH

# to_softgpu PATH...: moves parts of /usr/lib/stasis to the package stasis-softgpu.
to_softgpu() {
  for part in "$@"; do
    mkdir -p "$(dirname "$soft/usr/lib/stasis/$part")"
    mv "$main/usr/lib/stasis/$part" "$soft/usr/lib/stasis/$part"
  done
}

# link ROOT FOLDER PROGRAM: makes /usr/FOLDER/PROGRAM a link to a program of the tree.
link() {
  mkdir -p "$1/usr/$2"
  ln -s "../lib/stasis/bin/$3" "$1/usr/$2/$3"
}

# completion SHELL FOLDER FILE
# shellcheck disable=SC2154,SC2086  # the words of a command line, from lib.sh
completion() {
  mkdir -p "$main/usr/share/$2"
  $emulator "$tree/bin/stasis" completion "$1" >"$main/usr/share/$2/$3"
}

rm -rf "$work"
mkdir -p "$main/usr/lib/systemd/system" "$main/usr/share" "$soft/usr/share/man/man1" "$work/debian"
cp -a "$tree" "$main/usr/lib/stasis"
mv "$main/usr/lib/stasis/share" "$share"

to_softgpu bin/softgpu lib/softgpu libexec/softgpu-broker libexec/softgpu-hip-unpause
for file in "$tree"/workloads/*; do
  # `stasis bench` runs the program blocks, and `stasis check --gpu amd` hip_probe.
  case ${file##*/} in
    blocks | blocks.* | hip_probe) ;;
    *) to_softgpu "workloads/${file##*/}" ;;
  esac
done
link "$main" bin stasis
link "$main" sbin stasisd
link "$soft" bin softgpu

sed -e '/^# The folder of the unpacked tarball/d' -e 's,/opt/stasis/bin/,/usr/sbin/,' \
  "$share/systemd/stasisd.service" >"$main/usr/lib/systemd/system/stasisd.service"
completion bash bash-completion/completions stasis
completion zsh zsh/vendor-completions _stasis
completion fish fish/vendor_completions.d stasis.fish
mv "$share/man" "$main/usr/share/man"
mv "$main/usr/share/man/man1/softgpu.1" "$soft/usr/share/man/man1/"

doc=$main/usr/share/doc/stasis
soft_doc=$soft/usr/share/doc/stasis-softgpu
mkdir -p "$doc/sources" "$doc/examples" "$soft_doc"
mv "$share/docs" "$share/README.md" "$doc/"
mv "$share/kubernetes" "$doc/examples/"
mv "$share"/licenses/criu/criu_*.orig.tar.* "$doc/sources/"
{
  sed "s/@VERSION@/$version/" packaging/debian/copyright
  cat "$share/licenses/packages"
  # The licence of CRIU is in /usr/share/common-licenses.
  for text in "$share/LICENSE" "$share/licenses/curl/COPYING" "$share"/licenses/*/copyright; do
    [ -f "$text" ] || continue
    printf '\n==== %s ====\n\n' "${text#"$share/"}"
    cat "$text"
  done
} >"$doc/copyright"
cp "$doc/copyright" "$soft_doc/"

cp packaging/debian/control "$work/debian/control"
cat >"$work/debian/changelog" <<END
stasis ($version-1) unstable; urgency=medium

  * Stasis $version. changelog.gz of the package stasis lists what has changed.

 -- $(sed -n 's/^Maintainer: //p' packaging/debian/control)  $(date -u -R -d "@$SOURCE_DATE_EPOCH")
END
cp "$share/CHANGELOG.md" "$doc/changelog"
cp "$work/debian/changelog" "$doc/changelog.Debian"
cp "$work/debian/changelog" "$soft_doc/changelog.Debian"
gzip -9n "$doc"/changelog* "$soft_doc"/changelog* "$main"/usr/share/man/man*/* "$soft"/usr/share/man/man*/*

for package in stasis stasis-softgpu; do
  root=$work/$package
  mkdir -p "$root/DEBIAN" "$root/usr/share/lintian/overrides"
  cp "packaging/debian/$package.lintian-overrides" "$root/usr/share/lintian/overrides/$package"
  for script in postinst prerm postrm; do
    [ ! -f "packaging/debian/$package.$script" ] || cp "packaging/debian/$package.$script" "$root/DEBIAN/$script"
  done
  chmod -R u=rwX,go=rX "$root"
  find "$root/usr" -name '*.so*' -type f -exec chmod a-x {} +
  (cd "$root" && find usr -type f -exec md5sum {} +) >"$root/DEBIAN/md5sums"
done

# Libraries in the packages have no dependency information; all others are glibc's.
cd "$work"
for package in stasis stasis-softgpu; do
  programs=$(find "$package/usr/lib/stasis" -type f -exec sh -c 'head -c 4 "$1" | grep -q ELF' sh {} \; -print)
  # shellcheck disable=SC2086  # one path a word
  dpkg-shlibdeps --ignore-missing-info "$@" -lstasis/usr/lib/stasis/lib \
    -lstasis-softgpu/usr/lib/stasis/lib/softgpu "-T$package.substvars" $programs 2>"$package.log" || {
    cat "$package.log" >&2
    exit 1
  }
  dpkg-gencontrol "-p$package" "-P$package" "-T$package.substvars" -ffiles
  # Level 0 is smaller than level 9 of gzip, in less time. Level 6 is a sixth smaller and takes ten
  # times as long.
  dpkg-deb --root-owner-group -Zxz -z0 --build "$package" ../../dist
done
