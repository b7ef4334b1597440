#include <fmt/format.h>

#include "cli/completion.h"

namespace stasis::cli {
namespace {

// In fish's single quotes.
std::string Quoted(const std::string& text) {
  std::string quoted = "'";
  for (char c : text) {
    if (c == '\'' || c == '\\') quoted += '\\';
    quoted += c == '\n' ? ' ' : c;
  }
  return quoted + "'";
}

// The verbs that were typed are the first words without a dash.
constexpr char kHead[] =
    R"(# fish completion of stasis, by `stasis completion fish`: stasis completion fish | source
function __stasis_typed
    for word in (commandline -opc)[2..-1]
        test "$word" = --; and break
        string match -q -- '-*' $word; or echo $word
    end
end
function __stasis_at
    set -l typed (__stasis_typed)
    set -l count (count $argv)
    test (count $typed) -ge $count; and test "$typed[1..$count]" = "$argv"
end
function __stasis_just_at
    set -l typed (__stasis_typed)
    test "$typed" = "$argv"
end
function __stasis_names
    stasis completion --names $argv[1] 2>/dev/null
end
complete -c stasis -f
)";

// The words that follow -a, empty when there are none; one list that fish reads when it needs it.
std::string Offered(const Words& words) {
  std::string list = fmt::format("{}", fmt::join(words.words, " "));
  if (words.jobs) list += std::string(list.empty() ? "" : " ") + "(__stasis_names jobs)";
  if (words.images) list += std::string(list.empty() ? "" : " ") + "(__stasis_names images)";
  return list;
}

std::string OptionLine(const std::string& condition, const OptionModel& option) {
  std::string line = fmt::format("complete -c stasis -n {}", Quoted(condition));
  for (const auto& name : option.names) {
    line += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
  }
  if (option.takes_value) {
    const std::string list = Offered(option.value);
    line += option.value.anything ? " -r -F" : " -x";
    if (!list.empty()) line += " -a " + Quoted(list);
  }
  return line + " -d " + Quoted(option.help) + "\n";
}

void Add(std::string& script, const VerbModel& verb, const std::string& path) {
  const std::string just = path.empty() ? "__stasis_just_at" : "__stasis_just_at " + path;
  const std::string at = path.empty() ? just : "__stasis_at " + path;
  for (const VerbModel& sub : verb.verbs) {
    for (const auto& name : sub.names) {
      script += fmt::format("complete -c stasis -n {} -a {} -d {}\n", Quoted(just), Quoted(name),
                            Quoted(sub.help));
    }
  }
  for (const OptionModel& option : verb.options) script += OptionLine(at, option);
  if (const std::string list = Offered(verb.arguments); !list.empty()) {
    script += fmt::format("complete -c stasis -n {} -a {}\n", Quoted(at), Quoted(list));
  }
  if (verb.arguments.anything || verb.takes_command) {
    script += fmt::format("complete -c stasis -n {} -F\n", Quoted(at));
  }
  for (const VerbModel& sub : verb.verbs) {
    for (const auto& name : sub.names) Add(script, sub, path.empty() ? name : path + " " + name);
  }
}

}  // namespace

std::string FishCompletion(const VerbModel& program) {
  std::string script = kHead;
  Add(script, program, "");
  return script;
}

}  // namespace stasis::cli
