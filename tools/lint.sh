#!/bin/sh
# Checks the format and conventions of files: those changed since the last commit, since COMMIT, or
# all (--all). With COMMIT, also checks the subjects of the commits since then. With --ci, COMMIT is
# the one in .ci/lint-since.
set -eu
. tools/lib.sh
. tools/packages.sh

[ -n "${STASIS_NO_SETUP:-}" ] || install_groups lint
mkdir -p "$cache"
since=${1:-HEAD}
# With --ci clang-tidy checks only this many sources, those that changed last, because all of them
# would take too long.
tidy_limit=
if [ "$since" = --ci ]; then
  tidy_limit=20
  since=$(grep -v '^#' .ci/lint-since)
  # A shallow clone may lack that commit; use the oldest available one instead.
  git merge-base --is-ancestor "$since" HEAD 2>/dev/null || since=$(git rev-list --max-parents=0 HEAD | tail -n 1)
fi

# files SUFFIX...: prints the files to check, one path a line.
files() {
  if [ "$since" = --all ]; then
    git ls-files -- "$@"
  else
    git diff --name-only --diff-filter=d "$since" -- "$@"
  fi
  git ls-files --others --exclude-standard -- "$@"
}

bad=
# verdict STATUS NAME: records the result of a check.
verdict() {
  if [ "$1" = 0 ]; then note "$2: good"; else bad="$bad $2"; fi
}

say "checking format, scripts, commit subjects and habits"
status=0
files '*.cc' '*.h' '*.c' '*.cu' | xargs -r clang-format-16 --dry-run --Werror || status=$?
verdict $status format
status=0
{ files '*.sh'; files run .ci/run; } | xargs -r shellcheck -x || status=$?
verdict $status shell
status=0
files '*.py' | xargs -r python3 -m py_compile || status=$?
verdict $status python

# "area: verb ..." or "Verb ...", at most 72 characters, no full stop.
if [ "$since" != --all ]; then
  status=0
  git log --first-parent --no-merges --format='%h %s' "$since..HEAD" | awk '{ subject = substr($0, length($1) + 2) }
    length(subject) > 72 || subject ~ /[.]$/ || subject !~ /^([a-z0-9][a-z0-9_.,\/ -]*: [a-z]|[A-Z][a-z]+ )/ {
      print "   bad subject: " $0; bad = 1 }
    END { exit bad }' || status=$?
  verdict $status subjects
fi

# clang-tidy uses the configured build; generated headers must exist.
sources=$(files 'src/*.cc' 'softgpu/*.cc' 'workloads/*.cc')
if [ -n "$sources" ]; then
  if [ -n "$tidy_limit" ]; then
    # shellcheck disable=SC2086  # one path a word
    newest=$(git log --first-parent --no-merges --name-only --format= "$since..HEAD" -- $sources | awk 'NF && !seen[$0]++' | head -n "$tidy_limit")
    note "clang-tidy: the $(printf '%s\n' "$newest" | wc -l) sources that changed last, of $(printf '%s\n' "$sources" | wc -l)"
    sources=$newest
  fi
  tools/build.sh dev --target generated >"$cache/lint-build.log" 2>&1 ||
    die "the build could not be configured; see .cache/lint-build.log"
  # clang-tidy gets the compile commands without options that only GCC knows, and checks only files
  # that have a compile command.
  mkdir -p "$cache/tidy"
  known=$(python3 - "$cache/tidy/compile_commands.json" <<'END'
import json, os, sys
commands = json.load(open("build/dev/compile_commands.json"))
for entry in commands:
    entry["command"] = entry["command"].replace(" -fno-gnu-unique", "")
    print(os.path.relpath(entry["file"]))
json.dump(commands, open(sys.argv[1], "w"))
END
  )
  printf '%s\n' "$sources" | sort -u >"$cache/lint-sources"
  status=0
  printf '%s\n' "$known" | sort -u | comm -12 - "$cache/lint-sources" |
    xargs -r -P "$(jobs_here)" -n 1 clang-tidy-16 -p "$cache/tidy" --quiet --warnings-as-errors='*' 2>/dev/null ||
    status=$? # stderr counts warnings of third-party headers
  verdict $status habits
fi
[ -z "$bad" ] || die "not good:$bad"
