#!/bin/sh
# Dumps programs to images, and shows that a machine of another architecture refuses them before
# anything is touched (tools/arm64.sh images).
#
#   tools/foreign_images.sh make BUILD FOLDER     makes FOLDER/gpu-MACHINE and FOLDER/cpu-MACHINE
#   tools/foreign_images.sh refuse BUILD FOLDER   restores those of other machines
set -eu
. tools/lib.sh

what=$1
build=$(cd "$2" && pwd)
mkdir -p "$3"
folder=$(cd "$3" && pwd)
here=$(uname -m)
work=$(mktemp -d "${TMPDIR:-/tmp}/stasis-foreign-XXXXXX")
PATH=$build/bin:$PATH
export STASIS_STATE_DIR="$work/state" LD_LIBRARY_PATH="$build/lib/softgpu" SOFTGPU_DIR="$work/gpu" SOFTGPU_MEMORY=1G

clean_up() {
  for job in gpu cpu; do stasis kill "$job" --signal KILL >/dev/null 2>&1 || true; done
  stasis arena free >/dev/null 2>&1 || true
  umount "$work/state/run/arena" 2>/dev/null || true
  rm -rf "$work"
}
trap clean_up EXIT

# make_image JOB COMMAND...: dumps a job, which ends.
make_image() {
  job=$1
  shift
  stasis run --job "$job" -- "$@"
  until stasis logs "$job" | grep -q '^READY$'; do
    if stasis logs "$job" | grep '^FAILED'; then exit 1; fi
    sleep 0.1
  done
  stasis dump "$job" --name "$job-$here"
  cp -a "$STASIS_STATE_DIR/data/images/$job-$here" "$folder/"
}

# refuse_image IMAGE: expects that a restore is refused because of the machine, and that the image
# can be read all the same.
refuse_image() {
  machine=${1##*-}
  printf '$ stasis restore --trust-image %s\n' "${1##*/}"
  code=0
  said=$(stasis restore --trust-image "$1" 2>&1 </dev/null) || code=$?
  printf '%s\n' "$said" | sed "s#$folder/##g; s/^/    /"
  [ "$code" = 5 ] || die "the exit code is $code, not 5"
  case $said in
    *"the image was made on $machine, and this machine is $here"*) ;;
    *) die "the message does not name $machine and $here" ;;
  esac
  printf '$ stasis image verify %s\n' "${1##*/}"
  stasis image verify "$1" | sed "s#$folder/##g; s/^/    /"
}

case $what in
  make)
    make_image gpu "$build/workloads/counter" --memory 8M
    make_image cpu "$build/workloads/notcuda"
    ;;
  refuse)
    refused=0
    for image in "$folder"/*; do
      [ "${image##*-}" != "$here" ] || continue
      refuse_image "$image"
      refused=$((refused + 1))
    done
    [ "$refused" -gt 0 ] || die "there are no images of another machine in $folder"
    ;;
  *) die "unknown arguments: $*" ;;
esac
