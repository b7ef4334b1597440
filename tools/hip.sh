#!/bin/sh
# Unpacks HIP's headers from Debian's packages into .cache/hip, for the checks at compile time. Nothing
# is installed, because the package needs AMD's whole compiler.
set -eu
. tools/lib.sh
. tools/packages.sh
. tools/debian_source.sh

prefix=$cache/hip
work=$cache/hip-download
now=$(stamp_of tools/hip.sh tools/hip.table tools/debian_source.sh)
if is_stamped hip "$now" && [ -d "$prefix" ]; then exit 0; fi

install_groups hip
unpack_headers hip HIP libamdhip64-dev hip || {
  note "the table of HIP's functions (src/abi/hip) will not be compared with HIP's headers, because they could not" \
    "be downloaded (see .cache/hip-download/apt.log)"
  exit 0
}
rm -rf "$work"
set_stamp hip "$now"
