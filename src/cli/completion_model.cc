#include <CLI/CLI.hpp>
#include <algorithm>

#include "cli/completion.h"

namespace stasis::cli {
namespace {

// "TEXT:{refuse,close,keep}", as the parser writes it.
std::vector<std::string> WordsOfList(const std::string& type) {
  std::vector<std::string> words;
  const size_t open = type.find('{'), close = type.find('}');
  if (open == std::string::npos || close == std::string::npos) return words;
  words.emplace_back();
  for (size_t i = open + 1; i < close; ++i) {
    if (type[i] == ',') {
      words.emplace_back();
    } else {
      words.back() += type[i];
    }
  }
  return words;
}

Words ValueOf(const CLI::Option& option) {
  Words value;
  const std::string type = option.get_type_name();
  value.words = WordsOfList(type);
  value.anything = value.words.empty() && type.starts_with("TEXT");
  return value;
}

// By the names that the verbs give to their arguments.
void AddArgument(Words& arguments, const CLI::Option& option) {
  struct Row {
    const char* name;
    bool jobs, images, anything;
  };
  static constexpr Row kRows[] = {
      {"JOB", true, false, false},
      {"TARGET", true, false, false},
      {"IMAGE", false, true, true},
      {"TARGET|IMAGE", true, true, true},
  };
  for (const Row& row : kRows) {
    if (option.get_name() != row.name) continue;
    arguments.jobs |= row.jobs;
    arguments.images |= row.images;
    arguments.anything |= row.anything;
  }
  const auto words = WordsOfList(option.get_type_name());
  arguments.words.insert(arguments.words.end(), words.begin(), words.end());
}

void AddOptions(VerbModel& verb, const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;  // hidden
    OptionModel model;
    for (const auto& name : option->get_snames()) model.names.push_back("-" + name);
    for (const auto& name : option->get_lnames()) model.names.push_back("--" + name);
    if (model.names.empty()) {
      AddArgument(verb.arguments, *option);
      continue;
    }
    auto known = [&](const OptionModel& other) { return other.names == model.names; };
    if (std::any_of(verb.options.begin(), verb.options.end(), known)) continue;
    model.help = option->get_description();
    model.takes_value = option->get_items_expected_max() > 0;
    if (model.takes_value) model.value = ValueOf(*option);
    verb.options.push_back(std::move(model));
  }
}

VerbModel Model(const CLI::App& app, const CLI::App* program) {
  VerbModel verb;
  if (program != nullptr) {
    verb.names = {app.get_name()};
    for (const auto& alias : app.get_aliases()) verb.names.push_back(alias);
  }
  verb.help = app.get_description();
  verb.takes_command = program != nullptr && app.get_name() == "run";
  AddOptions(verb, app);
  if (program != nullptr) AddOptions(verb, *program);
  auto shown = [](const CLI::App* inner) { return !inner->get_group().empty(); };
  for (const CLI::App* inner : app.get_subcommands(shown)) {
    verb.verbs.push_back(Model(*inner, program == nullptr ? &app : program));
  }
  return verb;
}

}  // namespace

VerbModel ModelOf(const CLI::App& app) { return Model(app, nullptr); }

}  // namespace stasis::cli
