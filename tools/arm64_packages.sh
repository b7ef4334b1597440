# shellcheck shell=sh disable=SC2154
# Unpacks Debian packages for arm64, with all their dependencies, into a folder. Nothing is installed,
# and the machine's own packages and apt sources stay as they are. Sourced after lib.sh.

# arm64_sources SUITE: prints apt sources of a Debian suite and its updates, on the configured mirrors.
arm64_sources() {
  keyring=/usr/share/keyrings/debian-archive-keyring.gpg
  # shellcheck disable=SC2016  # apt's placeholders, not the shell's
  uris=$(apt-get indextargets --format '$(ORIGIN) $(LABEL) $(REPO_URI)' 'Identifier: Packages' 2>/dev/null)
  main=$(printf '%s\n' "$uris" | awk '$1 == "Debian" && $2 == "Debian" { print $3; exit }')
  security=$(printf '%s\n' "$uris" | awk '$2 == "Debian-Security" { print $3; exit }')
  for suite in "$1" "$1-updates"; do
    echo "deb [arch=arm64 signed-by=$keyring] ${main:-http://deb.debian.org/debian/} $suite main"
  done
  echo "deb [arch=arm64 signed-by=$keyring] ${security:-http://deb.debian.org/debian-security/} $1-security main"
}

# apt_arm64 FOLDER ARG...: runs apt-get as on an arm64 machine without any package. Its state is in
# FOLDER.
apt_arm64() {
  apt=$1
  shift
  apt-get -o Dir::Etc::sourcelist="$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null \
    -o Dir::State="$apt" -o Dir::State::status="$apt/status" -o Dir::Cache="$apt/cache" \
    -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=root \
    -o APT::Install-Recommends=false -o Acquire::Languages=none -o Acquire::Check-Valid-Until=false \
    -o Debug::NoLocking=1 "$@"
}

# download_arm64 FOLDER SUITE PACKAGE...: downloads the packages with their dependencies to
# FOLDER/cache/archives. apt's output is in FOLDER/apt.log.
download_arm64() {
  folder=$1
  suite=$2
  shift 2
  mkdir -p "$folder/lists/partial" "$folder/cache/archives/partial"
  : >"$folder/status"
  arm64_sources "$suite" >"$folder/sources.list"
  { apt_arm64 "$folder" update -qq && apt_arm64 "$folder" install -y -qq --download-only "$@"; } \
    >"$folder/apt.log" 2>&1 </dev/null || {
    tail -n 5 "$folder/apt.log" >&2
    die "the arm64 packages could not be downloaded from Debian $suite: $*" "apt's output is in $folder/apt.log"
  }
}

# unpack_arm64 ARCHIVES ROOT: unpacks all packages of a folder. Lists them in ROOT/packages, in the
# form that tools/dist.sh prints, and their libraries in ROOT/owners: package, file name. The symbols
# of their libraries are in ROOT/DEBIAN/symbols, where dpkg-shlibdeps finds them.
unpack_arm64() {
  mkdir -p "$2/usr/bin" "$2/usr/sbin" "$2/usr/lib" "$2/DEBIAN"
  for name in bin sbin lib; do ln -sfn "usr/$name" "$2/$name"; done
  for package in "$1"/*.deb; do
    name=$(dpkg-deb -f "$package" Package)
    dpkg-deb --fsys-tarfile "$package" | tar -C "$2" -xv --keep-directory-symlink --no-same-owner |
      sed -n "s,.*/\(lib[^/]*\.so\.[^/]*\)\$,$name \1,p" >>"$2/owners"
    # shellcheck disable=SC2016  # dpkg's placeholders, not the shell's
    dpkg-deb -W --showformat='${Package} ${Version}, source package ${source:Package} ${source:Version}\n' \
      "$package" >>"$2/packages"
    dpkg-deb --ctrl-tarfile "$package" | tar -xO ./symbols 2>/dev/null >>"$2/DEBIAN/symbols" || true
  done
}
