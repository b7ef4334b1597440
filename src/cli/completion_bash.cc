#include <fmt/format.h>

#include "cli/completion.h"

namespace stasis::cli {
namespace {

std::string Join(const std::vector<std::string>& words) {
  return fmt::format("{}", fmt::join(words, " "));
}

// Every path of verbs that leads to `verb`, as a pattern of `case`: "run"|"exec".
std::string Pattern(const std::vector<std::string>& paths) {
  return paths.empty() ? "\"\"" : fmt::format("\"{}\"", fmt::join(paths, "\"|\""));
}

struct Tables {
  std::string verbs, options, values, arguments;
};

// What _stasis_offer is told to complete with.
std::string Kinds(const Words& words) {
  std::string kinds;
  for (const auto& word : words.words) kinds += " " + word;
  if (words.jobs) kinds += " @jobs";
  if (words.images) kinds += " @images";
  if (words.anything) kinds += " @files";
  return kinds.empty() ? "" : kinds.substr(1);
}

void Add(Tables& tables, const VerbModel& verb, const std::vector<std::string>& above) {
  std::vector<std::string> paths;
  for (const auto& name : verb.names) {
    if (above.empty()) paths.push_back(name);
    for (const auto& path : above) paths.push_back(path + " " + name);
  }
  const std::string here = Pattern(paths);
  std::vector<std::string> inner, options;
  for (const VerbModel& sub : verb.verbs) {
    inner.insert(inner.end(), sub.names.begin(), sub.names.end());
  }
  if (!inner.empty()) tables.verbs += fmt::format("    {}) echo \"{}\" ;;\n", here, Join(inner));
  for (const OptionModel& option : verb.options) {
    options.insert(options.end(), option.names.begin(), option.names.end());
    if (!option.takes_value) continue;
    std::vector<std::string> typed;
    for (const auto& name : option.names) {
      if (paths.empty()) typed.push_back(" " + name);
      for (const auto& path : paths) typed.push_back(path + " " + name);
    }
    tables.values += fmt::format("    {}) echo \"{}\" ;;\n", Pattern(typed), Kinds(option.value));
  }
  tables.options += fmt::format("    {}) echo \"{}\" ;;\n", here, Join(options));
  if (const std::string kinds = Kinds(verb.arguments); !kinds.empty()) {
    tables.arguments += fmt::format("    {}) echo \"{}\" ;;\n", here, kinds);
  }
  for (const VerbModel& sub : verb.verbs) Add(tables, sub, paths);
}

// The same for bash and zsh; a case without a match is a failure, which tells an option without a
// value from one with.
std::string Function(const char* name, const std::string& cases) {
  return fmt::format("{}() {{\n  case \"$1\" in\n{}    *) return 1 ;;\n  esac\n}}\n", name, cases);
}

std::string Functions(const VerbModel& program) {
  Tables tables;
  Add(tables, program, {});
  return Function("_stasis_verbs", tables.verbs) + Function("_stasis_options", tables.options) +
         Function("_stasis_values", tables.values) +
         Function("_stasis_arguments", tables.arguments);
}

// Walks the words before the one that is completed: `path` is the verbs so far, `pending` an option
// that waits for its value. bash takes --tcp=keep for three words.
constexpr char kWalk[] = R"sh(  local path="" pending="" separated="" word
  for word in "${before[@]}"; do
    if [[ -n $separated ]]; then separated+=1; continue; fi
    if [[ $word == "=" ]]; then continue; fi
    if [[ -n $pending ]]; then pending=""; continue; fi
    if [[ $word == "--" ]]; then separated=1; continue; fi
    if [[ $word == -* ]]; then
      if _stasis_values "$path $word" >/dev/null; then pending=$word; fi
      continue
    fi
    if [[ " $(_stasis_verbs "$path") " == *" $word "* ]]; then path="${path:+$path }$word"; fi
  done
)sh";

constexpr char kBash[] = R"sh(_stasis_offer() {
  local kind
  for kind in $1; do
    case $kind in
      @jobs | @images)
        COMPREPLY+=($(compgen -W "$(stasis completion --names "${kind#@}" 2>/dev/null)" -- "$current"))
        ;;
      @files)
        compopt -o filenames 2>/dev/null
        COMPREPLY+=($(compgen -f -- "$current"))
        ;;
      *) COMPREPLY+=($(compgen -W "$kind" -- "$current")) ;;
    esac
  done
}
_stasis() {
  local IFS=$' \t\n' current=${COMP_WORDS[COMP_CWORD]}
  local before=("${COMP_WORDS[@]:1:COMP_CWORD-1}")
  if [[ $current == "=" ]]; then current=""; fi
  COMPREPLY=()
@WALK@  if [[ $separated == 1 ]]; then
    COMPREPLY=($(compgen -c -- "$current"))
  elif [[ -n $separated ]]; then
    _stasis_offer @files
  elif [[ -n $pending ]]; then
    _stasis_offer "$(_stasis_values "$path $pending")"
  elif [[ $current == -* ]]; then
    COMPREPLY=($(compgen -W "$(_stasis_options "$path")" -- "$current"))
  else
    _stasis_offer "$(_stasis_verbs "$path" || _stasis_arguments "$path")"
  fi
}
complete -F _stasis stasis
)sh";

constexpr char kZsh[] = R"sh(_stasis_offer() {
  local kind
  for kind in ${=1}; do
    case $kind in
      @jobs | @images) compadd -- ${(f)"$(stasis completion --names "${kind#@}" 2>/dev/null)"} ;;
      @files) _files ;;
      *) compadd -- "$kind" ;;
    esac
  done
}
_stasis() {
  local current=${words[CURRENT]}
  local -a before
  before=("${(@)words[2,CURRENT-1]}")
@WALK@  if [[ $separated == 1 ]]; then
    _command_names -e
  elif [[ -n $separated ]]; then
    _files
  elif [[ -n $pending ]]; then
    _stasis_offer "$(_stasis_values "$path_ $pending")"
  elif [[ $current == -* ]]; then
    compadd -- ${=$(_stasis_options "$path_")}
  else
    _stasis_offer "$(_stasis_verbs "$path_" || _stasis_arguments "$path_")"
  fi
}
if [[ ${funcstack[1]} == _stasis ]]; then
  _stasis "$@"
else
  compdef _stasis stasis
fi
)sh";

std::string With(std::string script, const std::string& walk) {
  const std::string mark = "@WALK@";
  return script.replace(script.find(mark), mark.size(), walk);
}

}  // namespace

std::string BashCompletion(const VerbModel& program) {
  return "# bash completion of stasis, by `stasis completion bash`: source <(stasis "
         "completion bash)\n" +
         Functions(program) + With(kBash, kWalk);
}

std::string ZshCompletion(const VerbModel& program) {
  // `path` is zsh's own name for PATH.
  std::string walk = kWalk;
  for (size_t at = 0; (at = walk.find("path", at)) != std::string::npos; at += 5) {
    walk.insert(at + 4, "_");
  }
  return "#compdef stasis\n# zsh completion of stasis, by `stasis completion zsh`\n" +
         Functions(program) + With(kZsh, walk);
}

}  // namespace stasis::cli
