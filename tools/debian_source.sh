# shellcheck shell=sh disable=SC2034,SC2154
# Downloads source archives and packages of Debian. Sourced after lib.sh; $work is a folder of the caller's.
# apt's output is in $work/apt.log.

# at_least VERSION LEAST: compares version numbers.
at_least() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$2" ]; }

# Makes ccache the compiler of the builds that follow, if it is installed.
use_ccache() {
  export PATH="/usr/lib/ccache:$PATH" CCACHE_BASEDIR="$work" CCACHE_NOHASHDIR=1
}

# Runs apt with a private sources list, lists and cache; the user's configuration is only read.
# Accepts expired indexes, because a frozen mirror is fine for one source archive; signatures are
# still verified.
apt_own() {
  apt-get -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=/dev/null \
    -o Dir::State::lists="$work/lists" -o Dir::Cache="$work/cache" -o APT::Sandbox::User=root \
    -o APT::Get::List-Cleanup=0 -o Debug::NoLocking=1 -o Acquire::Check-Valid-Until=false "$@"
}

# Prints the mirror that the user has configured, in any format of sources.
mirror() {
  # shellcheck disable=SC2016  # apt's placeholders, not the shell's
  uri=$(apt-get indextargets --format '$(REPO_URI)' 'Identifier: Packages' 'Label: Debian' 2>/dev/null | head -n 1)
  printf '%s\n' "${uri:-http://deb.debian.org/debian/}"
}

# read_index TYPE SUITE: reads the index of sources (deb-src) or packages (deb). Empties $work first.
# APT verifies the index's signature.
read_index() {
  rm -rf "$work"
  mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
  printf '%s [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n' \
    "$1" "$(mirror)" "$2" >"$work/sources.list"
  apt_own update -qq >"$work/apt.log" 2>&1
}

# found_file PACKAGE 'URI' FILE SIZE SHA256:HASH: sets $found to the version, and $uri, $file, $size and
# $checksum.
found_file() {
  uri=${2#?}
  uri=${uri%?}
  file=$3
  size=$4
  checksum=$5
  found=${file#"$1"_}
}

# find_source SUITE PACKAGE PATTERN: finds the package's source archive whose name has the pattern.
find_source() {
  read_index deb-src "$1" || return 1
  line=$(apt_own source --print-uris -qq "$2" 2>>"$work/apt.log" | grep "$3 ") || return 1
  # shellcheck disable=SC2086  # four words
  found_file "$2" $line
  found=${found%.orig.tar.*}
}

# find_package SUITE PACKAGE: finds the package for amd64.
find_package() {
  read_index deb "$1" || return 1
  line=$(apt_own -o APT::Architecture=amd64 download --print-uris -qq "$2" 2>>"$work/apt.log") || return 1
  # shellcheck disable=SC2086  # four words
  found_file "$2" $line
  found=${found%_*.deb}
}

# Downloads the file that find_source or find_package found, and compares it with $checksum. Sets $archive.
download_source() {
  archive=$work/$file
  /usr/lib/apt/apt-helper download-file "$uri" "$archive" "$checksum" >>"$work/apt.log" 2>&1
}

# unpack_header SUITE NAME TITLE PACKAGE FOLDER INCLUDE TESTED: see unpack_headers.
unpack_header() {
  find_package "$1" "$4" && download_source || return 1
  case $found in
    "$5".*) ;;
    *)
      echo "the suite has $3 $found now" >>"$work/apt.log"
      return 1
      ;;
  esac
  [ "$found" = "$7" ] || note "Debian $1 now has $3 $found; Stasis was tested with $7"
  dpkg-deb -x "$archive" "$work/files"
  rm -rf "${cache:?}/$2/$5"
  mkdir -p "$cache/$2/$5"
  mv "$work/files/usr/include/$6" "$cache/$2/$5/$6"
}

# unpack_headers NAME TITLE PACKAGE INCLUDE: for each line "SUITE FOLDER VERSION" of tools/NAME.table, unpacks the folder
# INCLUDE of the package's headers to .cache/NAME/FOLDER, if its version begins with FOLDER. TITLE is the name in messages.
# What an earlier run has unpacked stays. Returns false if there is nothing.
unpack_headers() {
  count=0
  while read -r suite folder tested; do
    case $suite in '' | '#'*) continue ;; esac
    if unpack_header "$suite" "$1" "$2" "$3" "$folder" "$4" "$tested"; then
      say "$2 $found: headers in .cache/$1/$folder"
    else
      note "could not get the headers of $2 from Debian $suite: $(tail -n 1 "$work/apt.log" 2>/dev/null)"
    fi
    [ ! -d "$cache/$1/$folder" ] || count=$((count + 1))
  done <"tools/$1.table"
  [ "$count" -gt 0 ]
}

# fetch_from_suite PACKAGE LEAST SUITE: downloads the package's source archive, of version LEAST or newer.
fetch_from_suite() {
  find_source "$3" "$1" '\.orig\.tar\.[gx]z' || return 1
  if ! at_least "$found" "$2"; then
    echo "version $found is older than $2" >>"$work/apt.log"
    return 1
  fi
  say "downloading $1 $found, source archive of Debian $3 ($((size / 1000)) kB)"
  download_source
}

# fetch_source PACKAGE LEAST: downloads the source archive from the first suite of
# tools/PACKAGE.table that has version LEAST or newer. Sets $archive to its path and $found to its
# version. Returns false if there is none.
fetch_source() {
  while read -r suite tried; do
    case $suite in '' | '#'*) continue ;; esac
    if fetch_from_suite "$1" "$2" "$suite"; then
      [ "$found" = "$tried" ] || note "Debian $suite now has $1 $found; Stasis was tested with $tried"
      return 0
    fi
    note "could not get the source of $1 from Debian $suite: $(tail -n 1 "$work/apt.log" 2>/dev/null)"
  done <"tools/$1.table"
  return 1
}

# kept_source PACKAGE LEAST FOLDER: takes the source archive that an earlier build left in FOLDER,
# which was verified when it was downloaded. Sets $archive and $found, and empties $work. Returns
# false if there is none of version LEAST or newer.
kept_source() {
  for archive in "$3/$1"_*.orig.tar.*; do
    found=${archive##*/"$1"_}
    found=${found%.orig.tar.*}
    if [ -f "$archive" ] && at_least "$found" "$2"; then
      rm -rf "$work"
      mkdir -p "$work"
      cp "$archive" "$work/"
      archive=$work/${archive##*/}
      return 0
    fi
  done
  return 1
}
