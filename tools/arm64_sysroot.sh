#!/bin/sh
# Provides what a build for arm64 needs: the cross compiler, and in .cache/arm64/sysroot the libraries
# of this Debian suite for arm64.
set -eu
. tools/lib.sh
. tools/packages.sh
. tools/arm64_packages.sh

root=$cache/arm64/sysroot
work=$cache/arm64/sysroot-download
now=$(stamp_of tools/arm64_sysroot.sh tools/arm64_packages.sh tools/packages.txt)
[ -n "${STASIS_NO_SETUP:-}" ] || install_groups arm64
if is_stamped arm64-sysroot "$now" && [ -d "$root" ]; then exit 0; fi

suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
say "downloading arm64 libraries of Debian $suite"
rm -rf "$root" "$work"
# shellcheck disable=SC2046  # one package a word
download_arm64 "$work" "$suite" $(packages_of build criu curl inside | grep -e '-dev$') libc6-dev
unpack_arm64 "$work/cache/archives" "$root"
# Absolute links would lead to this machine's files.
find "$root" -type l -lname '/*' | while read -r link; do
  ln -sfn "$root$(readlink "$link")" "$link"
done
rm -rf "$work"
set_stamp arm64-sysroot "$now"
note "arm64 libraries: $(wc -l <"$root/packages") packages in .cache/arm64/sysroot"
