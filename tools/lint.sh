#!/bin/sh
# Format and habits of the files that differ from the last commit; with --all, of all; with a commit's
# name, of those that differ from it.
set -eu
. tools/lib.sh
. tools/packages.sh

[ -n "${STASIS_NO_SETUP:-}" ] || install_groups lint
since=${1:-HEAD}

# files SUFFIX...: what is to be looked at, one path a line.
files() {
  if [ "$since" = --all ]; then
    git ls-files -- "$@"
  else
    git diff --name-only --diff-filter=d "$since" -- "$@"
  fi
  git ls-files --others --exclude-standard -- "$@"
}

bad=
# verdict STATUS NAME: notes how a check went.
verdict() {
  if [ "$1" = 0 ]; then note "$2: good"; else bad="$bad $2"; fi
}

say "format and habits"
status=0
files '*.cc' '*.h' '*.c' '*.cu' | xargs -r clang-format-16 --dry-run --Werror || status=$?
verdict $status format
status=0
{ files '*.sh'; files run .ci/run; } | xargs -r shellcheck -x -s sh || status=$?
verdict $status shell
status=0
files '*.py' | xargs -r python3 -m py_compile || status=$?
verdict $status python

# clang-tidy reads the code as it was configured; generated headers have to be there.
sources=$(files 'src/*.cc' 'softgpu/*.cc' 'workloads/*.cc')
if [ -n "$sources" ]; then
  tools/build.sh dev >"$cache/lint-build.log" 2>&1 || die "it does not build; see .cache/lint-build.log"
  known=$(python3 -c 'import json, os; print("\n".join(os.path.relpath(c["file"]) for c in json.load(open("build/dev/compile_commands.json"))))')
  printf '%s\n' "$sources" | sort -u >"$cache/lint-sources"
  status=0
  printf '%s\n' "$known" | sort -u | comm -12 - "$cache/lint-sources" |
    xargs -r -P "$(jobs_here)" -n 1 clang-tidy-16 -p build/dev --quiet --warnings-as-errors='*' 2>/dev/null ||
    status=$? # its stderr counts the warnings of other people's headers
  verdict $status habits
fi
[ -z "$bad" ] || die "not good:$bad"
