#!/bin/sh
# Installs everything needed to build and test. Fast if nothing is missing.
set -eu
. tools/lib.sh
. tools/packages.sh

if [ -n "${STASIS_NO_SETUP:-}" ]; then
  [ -e "$cache/stamps/setup" ] || set_stamp setup "left alone"
  exit 0
fi
now=$(stamp_of tools/packages.txt tools/debian_source.sh tools/criu.table tools/criu.sh tools/curl.table tools/curl.sh \
  tools/sshd.sh tools/hip.table tools/hip.sh tools/slurm.table tools/slurm.sh cmake/hardening.table)
if is_stamped setup "$now"; then
  [ "${1:-}" = --quiet ] || note "nothing to do: this machine is set up already"
  exit 0
fi
say "setting this machine up"
# All packages are installed in one step, so that the user confirms only once.
if tools/criu.sh --is-there; then install_groups build curl sshd hip slurm; else install_groups build curl sshd hip slurm criu; fi
tools/criu.sh
tools/curl.sh
tools/sshd.sh
tools/hip.sh
tools/slurm.sh
set_stamp setup "$now"
