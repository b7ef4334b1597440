#!/bin/sh
# Measures Slurm's launcher (libexec/stasis-step) without Slurm: a script starts it as slurmstepd starts a task, and sends
# SIGCONT and SIGTERM as at a preemption. A PyTorch program with random data is dumped, its GPU is empty, the launcher
# ends with exit code 75; started again, it restores the program, which compares all of its data at its end.
#
#   tests/gpu/slurm_step.sh DIST_DIR OUT_DIR [GIB]   GIB (36) of GPU data
#   ROUNDS (3): preemptions, each with host memory kept ready (--stasis=reserve) and then without. RESERVE (both): on, off
#   OPTIONS (""): as of --stasis, for example every=30s
#   STATE_DIR (/tmp/stasis-slurm-step): jobs and images, of 1 x GIB. /dev/shm/… if the disk is too small or too slow
#   GPU=soft tests/gpu/slurm_step.sh …               on softgpu, with 64M
#
# Needs python3 with torch, and the rights of root. Writes OUT_DIR/summary.txt, OUT_DIR/slurm_step.json and
# OUT_DIR/logs.tar.gz. Takes at most BUDGET_S (500) seconds, and host memory of GIB, twice as much with reserve, of
# which half stays free; GIB more if STATE_DIR is in /dev/shm.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
exec python3 "$here/slurm_step.py" "$@"
