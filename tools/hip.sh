#!/bin/sh
# Unpacks HIP's headers from Debian's packages into .cache/hip, for the checks at compile time. Nothing
# is installed, because the package needs AMD's whole compiler.
set -eu
. tools/lib.sh
. tools/packages.sh
. tools/debian_source.sh

prefix=$cache/hip
work=$cache/hip-download
now=$(stamp_of tools/hip.sh tools/hip.table)
if is_stamped hip "$now" && [ -d "$prefix" ]; then exit 0; fi

# unpack SUITE FOLDER TESTED: unpacks the headers of the suite, if they are of major version FOLDER.
unpack() {
  find_package "$1" libamdhip64-dev && download_source || return 1
  case $found in
    "$2".*) ;;
    *)
      echo "the suite has HIP $found now" >>"$work/apt.log"
      return 1
      ;;
  esac
  [ "$found" = "$3" ] || note "Debian $1 now has HIP $found; Stasis was tested with $3"
  dpkg-deb -x "$archive" "$work/files"
  rm -rf "${prefix:?}/$2"
  mkdir -p "$prefix/$2"
  mv "$work/files/usr/include/hip" "$prefix/$2/hip"
}

install_groups hip
count=0
while read -r suite folder tested; do
  case $suite in '' | '#'*) continue ;; esac
  if unpack "$suite" "$folder" "$tested"; then
    say "HIP $found: headers in .cache/hip/$folder"
  else
    note "could not get HIP's headers from Debian $suite: $(tail -n 1 "$work/apt.log" 2>/dev/null)"
  fi
  [ ! -d "$prefix/$folder" ] || count=$((count + 1))
done <tools/hip.table
if [ "$count" = 0 ]; then
  note "the table of HIP's functions (src/abi/hip) will not be compared with HIP's headers, because they could not" \
    "be downloaded (see .cache/hip-download/apt.log)"
  exit 0
fi
rm -rf "$work"
set_stamp hip "$now"
