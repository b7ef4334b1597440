#!/bin/sh
# Runs Stasis on an arm64 machine that QEMU emulates completely: Debian's kernel and packages,
# unpacked and never installed (docs/arm64.md). The console is printed; it is also in
# build/arm64-machine/PAGES/console.log.
#
#   tools/arm64.sh [--pages 4|16] demo                  the demo, from the tarball
#   tools/arm64.sh [--pages 4|16] test [ARG...]         ctest with these arguments
#   tools/arm64.sh [--pages 4|16] run COMMAND [ARG...]  any command, in the checkout
#   tools/arm64.sh [--pages 4|16] images                images of this machine in that one, and back:
#                                                       both refuse those of the other
#
# --pages chooses the kernel by the size of its pages in KiB. STASIS_ARM64_LIMIT_S is the time limit
# (7200).
set -eu
. tools/lib.sh
. tools/packages.sh
. tools/arm64_packages.sh

usage() {
  sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p;}' "$0" >&2
  exit 2
}
pages=4
if [ "${1:-}" = --pages ]; then
  [ $# -ge 2 ] || usage
  pages=$2
  shift 2
fi
case $pages in
  4) kernel=linux-image-arm64 ;;
  16) kernel=linux-image-arm64-16k ;;
  *) usage ;;
esac
what=${1:-demo}
[ $# -eq 0 ] || shift
case $what in demo | test | run | images) ;; *) usage ;; esac

suite=bookworm        # of the programs: what the cross build uses
kernel_suite=trixie   # has a kernel with pages of 16 KiB
limit=${STASIS_ARM64_LIMIT_S:-7200}
root=$cache/arm64/machine
kernels=$cache/arm64/kernel-$pages
machine=build/arm64-machine/$pages
# Modules that the first file system loads, and those that Stasis and CRIU use.
modules="crc32c_generic virtio_pci virtio_blk ext4 unix_diag inet_diag tcp_diag udp_diag netlink_diag af_packet_diag
  overlay fuse loop tun veth nf_tables"
programs="bash binutils busybox-static cmake coreutils dash diffutils dpkg e2fsprogs findutils gawk grep gzip init-system-helpers
  iproute2 kmod libc-bin libgcc-s1 libstdc++6 mount openssl procps python3 sed tar util-linux libprotobuf-c1
  libnl-3-200 libnet1 libnftables1 libcap2 libbsd0 libuuid1"

# Unpacks the machine's programs.
provide_programs() {
  now=$(echo "$suite $programs" | cat - tools/arm64_packages.sh | sha256sum | cut -c1-32)
  if is_stamped arm64-machine "$now" && [ -d "$root" ]; then return; fi
  say "downloading the programs of the machine, Debian $suite for arm64"
  rm -rf "$root" "$root-download"
  # shellcheck disable=SC2086  # one package a word
  download_arm64 "$root-download" "$suite" $programs
  unpack_arm64 "$root-download/cache/archives" "$root"
  rm -rf "$root-download"
  ln -sf dash "$root/usr/bin/sh"
  ln -sf gawk "$root/usr/bin/awk"
  mkdir -p "$root/proc" "$root/sys" "$root/dev" "$root/run" "$root/tmp" "$root/root" "$root/etc"
  chmod 1777 "$root/tmp"
  printf 'root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n' >"$root/etc/passwd"
  printf 'root:x:0:\nnogroup:x:65534:\n' >"$root/etc/group"
  echo '127.0.0.1 localhost arm64' >"$root/etc/hosts"
  set_stamp arm64-machine "$now"
}

# Unpacks Debian's kernel to $kernels/boot and $kernels/usr/lib/modules. The folder gets its name last,
# so that an interrupted run leaves no incomplete one.
provide_kernel() {
  [ ! -d "$kernels/boot" ] || return 0
  work=$kernels-download
  say "downloading the kernel, $kernel of Debian $kernel_suite"
  rm -rf "$kernels" "$kernels-new" "$work"
  mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
  : >"$work/status"
  arm64_sources "$kernel_suite" >"$work/sources.list"
  apt_arm64 "$work" update -qq >"$work/apt.log" 2>&1 || die "no package lists of $kernel_suite; see $work/apt.log"
  # The package of the flavour depends on the one of the current version.
  name=$(apt_arm64 "$work" install -qq --print-uris "$kernel" 2>>"$work/apt.log" |
    sed -n 's/^[^ ]* \(linux-image-[0-9][^_]*\)_.*/\1/p' | head -n 1)
  [ -n "$name" ] || die "Debian $kernel_suite has no $kernel; see $work/apt.log"
  # apt downloads to the current folder.
  (cd "$work" && apt_arm64 "$work" download -qq "$name") >>"$work/apt.log" 2>&1 ||
    die "$name could not be downloaded; see $work/apt.log"
  unpack_arm64 "$work" "$kernels-new"
  mv "$kernels-new" "$kernels"
  rm -rf "$work"
}

# Prints the files of the modules, each after those that it needs.
module_files() {
  for module in $modules; do
    awk -v module="$module" -F: '
      { name = $1; sub(/.*\//, "", name); sub(/\.ko.*/, "", name); gsub(/-/, "_", name) }
      name == module { n = split($2, needs, " "); for (; n > 0; n--) print needs[n]; print $1 }
    ' "$kernels/usr/lib/modules/$version/modules.dep"
  done | awk '!seen[$0]++'
}

# Makes the first file system: it loads modules and starts the disk's /machine/init.
make_first_file_system() {
  first=$machine/first
  rm -rf "$first"
  mkdir -p "$first/bin" "$first/modules" "$first/proc" "$first/dev" "$first/disk"
  cp "$root/usr/bin/busybox" "$first/bin/"
  number=100
  for file in $(module_files); do
    number=$((number + 1))
    name=$first/modules/$number-$(basename "$file" .xz)
    case $file in
      *.xz) xz -dc "$kernels/usr/lib/modules/$version/$file" >"$name" ;;
      *) cp "$kernels/usr/lib/modules/$version/$file" "$name" ;;
    esac
  done
  cat >"$first/init" <<'END'
#!/bin/busybox sh
/bin/busybox mount -t devtmpfs none /dev
for module in /modules/*.ko; do /bin/busybox insmod $module || echo "machine: no $module"; done
/bin/busybox mount -t ext4 /dev/vda /disk || echo "machine: there is no disk"
exec /bin/busybox switch_root /disk /machine/init
END
  chmod +x "$first/init"
  (cd "$first" && find . | cpio --quiet -o -H newc) | gzip -1 >"$machine/initrd"
}

# Makes the disk: the programs, the checkout without objects at its own path, and what to run.
make_disk() {
  disk=$machine/root
  rm -rf "$disk"
  mkdir -p "$disk/machine" "$disk$PWD/build"
  cp -a "$root/." "$disk/"
  git ls-files -z | grep -zv '^docs/measurements/' | tar -c --null -T - | tar -C "$disk$PWD" -x
  if [ -d build/arm64 ]; then
    tar -C build -c --exclude=CMakeFiles --exclude='*.o' --exclude='*.a' --exclude='*.cc' --exclude='*.pb.h' arm64 |
      tar -C "$disk$PWD/build" -x
    # ctest and the tests expect the CRIU that was built.
    [ ! -d "$cache/arm64/criu" ] || {
      mkdir -p "$disk$cache/arm64"
      cp -a "$cache/arm64/criu" "$disk$cache/arm64/"
    }
    ln -s arm64 "$disk$PWD/build/release"
    # In the machine nothing is emulated.
    find "$disk$PWD/build/arm64" -name CTestTestfile.cmake -exec \
      sed -i 's,"[^"]*/qemu-aarch64" "-L" "[^"]*" ,,' {} +
  fi
  if [ "$what" = images ]; then cp -a "$images/." "$disk/machine/images"; fi
  if [ "$what" != test ] && [ "$what" != run ]; then
    for tarball in dist/stasis-*-linux-aarch64.tar.gz; do :; done
    [ -f "$tarball" ] || die "there is no tarball for arm64. To make it:" "./run dist --arch arm64"
    mkdir -p "$disk/opt"
    tar -C "$disk/opt" -xzf "$tarball"
  fi
  cat >"$disk/machine/init" <<'END'
#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs run /run
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t cgroup2 cgroup /sys/fs/cgroup
ln -sf /proc/self/fd /dev/fd
busybox hostname arm64
ip link set lo up
echo "machine: Linux $(uname -r) $(uname -m), pages of $(getconf PAGESIZE) bytes"
setsid sh /machine/command </dev/null
echo "machine: ended with $?"
sync
busybox poweroff -f
END
  chmod +x "$disk/machine/init"
  command_of_machine "$@" >"$disk/machine/command"
  rm -f "$machine/disk"
  mke2fs -q -t ext4 -d "$disk" -L arm64 "$machine/disk" 12G
  rm -rf "$disk"
}

# Prints the arguments as words that a shell reads back unchanged.
quoted() {
  for word in "$@"; do printf "'%s' " "$(printf '%s' "$word" | sed "s/'/'\\\\''/g")"; done
}

command_of_machine() {
  printf 'cd %s\n' "$PWD"
  # shellcheck disable=SC2016  # expanded in the machine
  case $what in
    demo)
      echo 'STASIS_DEMO_BUILD=$(echo /opt/stasis-*) exec tools/demo.sh'
      ;;
    test) printf 'cd build/arm64 && exec ctest --output-on-failure --timeout 3600 %s\n' "$(quoted "$@")" ;;
    run) printf 'exec %s\n' "$(quoted "$@")" ;;
    images)
      echo 'tools/foreign_images.sh refuse /opt/stasis-* /machine/images || exit 1'
      echo 'exec tools/foreign_images.sh make /opt/stasis-* /machine/images'
      ;;
  esac
}

[ -n "${STASIS_NO_SETUP:-}" ] || install_groups machine
provide_programs
provide_kernel
for version in "$kernels"/boot/vmlinu[xz]-*; do version=${version##*/vmlinu?-}; done
mkdir -p "$machine"
[ -s "$kernels/usr/lib/modules/$version/modules.dep" ] || /sbin/depmod -b "$kernels/usr" "$version"
images=$machine/images
if [ "$what" = images ]; then
  [ -x build/release/bin/stasis ] || die "there is no build for this machine. To make it:" "./run build"
  rm -rf "$images"
  tools/foreign_images.sh make build/release "$images"
fi
say "making the disk of the machine"
make_first_file_system
make_disk "$@"

say "starting the machine: Linux $version, emulated (time limit $limit s)"
status=0
: >"$machine/console.log" # QEMU makes it after tail looks for it
# The machine's clock counts instructions (1 ns each), so that time limits in tests do not depend on the
# speed of the emulator.
timeout --foreground "$limit" qemu-system-aarch64 -machine virt,gic-version=3 -cpu max,pauth-impdef=on \
  -icount shift=0 -smp 2 -m 4096 -nographic -no-reboot -nic none -kernel "$kernels"/boot/vmlinu[xz]-"$version" \
  -initrd "$machine/initrd" -drive "file=$machine/disk,format=raw,if=virtio,cache=unsafe" \
  -append "console=ttyAMA0 panic=-1 loglevel=4" </dev/null >"$machine/console.log" 2>&1 &
qemu=$!
trap 'kill "$qemu" 2>/dev/null || true' EXIT INT TERM
tail --pid="$qemu" -n +1 -f "$machine/console.log" | sed -u 's/\r//g' # each line at once, also to a file
wait "$qemu" || status=$?
[ "$status" -ne 124 ] || die "the machine did not end within $limit s; its console is in $machine/console.log"
ended=$(tr -d '\r' <"$machine/console.log" | sed -n 's/^machine: ended with //p' | tail -n 1)
[ -n "$ended" ] || die "the machine ended before its command; its console is in $machine/console.log"
if [ "$what" = images ] && [ "$ended" = 0 ]; then
  rm -rf "$images"
  mkdir -p "$images"
  /sbin/debugfs -R "rdump /machine/images $machine" "$machine/disk" 2>/dev/null
  tools/foreign_images.sh refuse build/release "$images"
fi
exit "$ended"
