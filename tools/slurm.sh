#!/bin/sh
# Unpacks the headers of other releases of Slurm from Debian's packages into .cache/slurm, for plugins that work with
# them. Nothing is installed, because only one release can be.
set -eu
. tools/lib.sh
. tools/packages.sh
. tools/debian_source.sh

prefix=$cache/slurm
work=$cache/slurm-download
now=$(stamp_of tools/slurm.sh tools/slurm.table tools/debian_source.sh)
if is_stamped slurm "$now" && [ -d "$prefix" ]; then exit 0; fi

install_groups slurm
unpack_headers slurm Slurm libslurm-dev slurm || {
  note "there will be no plugin for these releases (see .cache/slurm-download/apt.log)"
  exit 0
}
rm -rf "$work"
set_stamp slurm "$now"
