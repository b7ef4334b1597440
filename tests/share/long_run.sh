#!/bin/sh
# Shows for a minute that nothing is lost when programs share GPUs and the daemon is killed all the while: on softgpu, six
# programs of 3 GiB use a GPU of 8 GiB at random times, one of them grows, and two more use two other GPUs each. The
# daemon is killed (SIGKILL) every few seconds and started again. Every program verifies all of its memory in each round.
# At the end each program must finish more rounds.
#
#   tests/share/long_run.sh DIST_DIR OUT_DIR     DIST_DIR: the unpacked tarball of `./run dist`, or a build folder
#   SHARE_MEMORY    MiB of each program (3072). By default less where a twentieth of the free memory is less; at most
#                   about 20 times as much is used. The GPUs have 8/3 of it
#   SECONDS_OF_USE  (60) while the daemon is killed; KILL_EVERY_S (4); REST_S (3): mean pause of a program between rounds
#
# Needs python3 and root. Uses tests/gpu/harness.py, tests/gpu/ride.py and tests/share/sharer.py. Writes
# OUT_DIR/summary.txt, OUT_DIR/share_long_run.json and OUT_DIR/logs.tar.gz, and prints the result as one line of JSON at
# the end. Takes at most BUDGET_S (1500) seconds.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
exec python3 -B "$here/long_run.py" "$@"
