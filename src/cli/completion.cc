#include "cli/completion.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "cli/parser_words.h"

namespace stasis::cli {
namespace {

// CLI11's type name of an option with fixed values is, for example, "TEXT:{refuse,close,keep}".
std::vector<std::string> FixedValues(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const size_t open = type.find('{'), close = type.find('}');
  if (open == std::string::npos || close == std::string::npos) return {};
  return CLI::detail::split(type.substr(open + 1, close - open - 1), ',');
}

void AddValues(Completion& completion, const CLI::Option& option) {
  const auto values = FixedValues(option);
  for (const std::string& value : values) completion.Add(value);
  completion.files |= values.empty() && option.get_type_name().starts_with("TEXT");
}

// Derives candidates from the names of positional arguments.
void AddArguments(Completion& completion, const CLI::App& verb) {
  struct Row {
    const char* name;
    bool jobs, images, files;
  };
  static constexpr Row kRows[] = {
      {"JOB", true, false, false},
      {"TARGET", true, false, false},
      {"IMAGE", false, true, true},
      {"TARGET|IMAGE", true, true, true},
  };
  for (const CLI::Option* option : verb.get_options()) {
    if (option->nonpositional()) continue;
    for (const std::string& value : FixedValues(*option)) completion.Add(value);
    for (const Row& row : kRows) {
      if (option->get_name() != row.name) continue;
      completion.jobs |= row.jobs;
      completion.images |= row.images;
      completion.files |= row.files;
    }
  }
}

void AddVerbs(Completion& completion, const CLI::App& verb) {
  for (const std::string& name : VerbNames(verb)) {
    completion.Add(name, FindVerb(verb, name)->get_description());
  }
}

// The meaning of the words before the one that is completed.
struct Line {
  const CLI::App* verb;        // the command typed so far
  std::string value_of;        // an option whose value comes next
  size_t after_separator = 0;  // number of words after "--"
};

Line Read(const CLI::App& program, const std::vector<std::string>& before) {
  Line line{&program, {}};
  for (const std::string& word : before) {
    if (line.after_separator != 0 || word == "--") {
      ++line.after_separator;
    } else if (word == "=") {
      continue;
    } else if (!line.value_of.empty()) {
      line.value_of.clear();
    } else if (word.starts_with('-')) {
      if (WantsNextWord(*line.verb, program, word)) line.value_of = word;
    } else if (const CLI::App* inner = FindVerb(*line.verb, word)) {
      line.verb = inner;
    }
  }
  return line;
}

const CLI::Option* FindOption(const Line& line, const CLI::App& program, const std::string& name) {
  for (const CLI::Option* option : ShownOptions(*line.verb, program)) {
    if (option->check_name(name)) return option;
  }
  return nullptr;
}

}  // namespace

void Completion::Add(const std::string& text, const std::string& help) {
  const std::string whole = prefix + text;
  if (!whole.starts_with(typed)) return;
  std::string line = help;
  std::replace(line.begin(), line.end(), '\n', ' ');
  words.push_back({whole, line});
}

Completion Complete(const CLI::App& program, std::vector<std::string> words) {
  Completion completion;
  if (!words.empty()) {
    completion.typed = words.back() == "=" ? "" : words.back();
    words.pop_back();
  }
  Line line = Read(program, words);
  const std::string& typed = completion.typed;
  if (line.after_separator != 0) {
    (line.after_separator == 1 ? completion.commands : completion.files) = true;
    return completion;
  }
  if (const size_t equals = typed.find('='); typed.starts_with("--") && equals != typed.npos) {
    line.value_of = typed.substr(0, equals);
    completion.prefix = typed.substr(0, equals + 1);
  }
  if (!line.value_of.empty()) {
    if (const CLI::Option* option = FindOption(line, program, line.value_of)) {
      AddValues(completion, *option);
    }
  } else if (typed.starts_with('-')) {
    for (const CLI::Option* option : ShownOptions(*line.verb, program)) {
      for (const std::string& name : NamesOf(*option)) {
        completion.Add(name, option->get_description());
      }
    }
  } else if (const auto inner = VerbNames(*line.verb); !inner.empty()) {
    AddVerbs(completion, *line.verb);
  } else {
    AddArguments(completion, *line.verb);
  }
  return completion;
}

}  // namespace stasis::cli
