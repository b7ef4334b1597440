#include "cli/parser_words.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "config/table.h"

namespace stasis::cli {
std::vector<std::string> VerbNames(const CLI::App& verb) {
  std::vector<std::string> names;
  for (const CLI::App* inner : verb.get_subcommands([](const CLI::App*) { return true; })) {
    if (inner->get_group().empty()) continue;
    names.push_back(inner->get_name());
    const auto& aliases = inner->get_aliases();
    names.insert(names.end(), aliases.begin(), aliases.end());
  }
  return names;
}

const CLI::App* FindVerb(const CLI::App& verb, const std::string& name) {
  for (const CLI::App* inner : verb.get_subcommands([](const CLI::App*) { return true; })) {
    if (inner->check_name(name)) return inner;
  }
  return nullptr;
}

std::vector<const CLI::Option*> ShownOptions(const CLI::App& verb, const CLI::App& program) {
  std::vector<const CLI::Option*> shown;
  auto is_known = [&](const CLI::Option* option) {
    return std::any_of(shown.begin(), shown.end(), [&](const CLI::Option* other) {
      return NamesOf(*other) == NamesOf(*option);
    });
  };
  for (const CLI::App* app : {&verb, &program}) {
    for (const CLI::Option* option : app->get_options()) {
      if (option->get_group().empty() || !option->nonpositional() || is_known(option)) continue;
      shown.push_back(option);
    }
  }
  return shown;
}

std::vector<std::string> NamesOf(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const auto& name : option.get_snames()) names.push_back("-" + name);
  for (const auto& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

bool TakesValue(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

bool WantsNextWord(const CLI::App& verb, const CLI::App& program, const std::string& word) {
  for (const CLI::App* app : {&verb, &program}) {
    for (const CLI::Option* option : app->get_options()) {
      const auto names = NamesOf(*option);
      if (std::find(names.begin(), names.end(), word) != names.end()) return TakesValue(*option);
    }
  }
  return false;
}

std::string ClosestName(const std::string& typed, const std::vector<std::string>& known) {
  constexpr size_t kLongest = 64;  // longer than any name
  constexpr size_t kMinPrefix = 3;
  if (typed.size() > kLongest) return "";
  const size_t most = std::max<size_t>(1, typed.size() / 3);
  std::string closest;
  size_t fewest = most + 1;
  for (const std::string& name : known) {
    const size_t edits = config::EditDistance(typed, name);
    if (edits < fewest && edits < name.size()) {
      fewest = edits;
      closest = name;
    }
  }
  if (!closest.empty() || typed.size() < kMinPrefix) return closest;
  auto begins = [&](const std::string& name) { return name.starts_with(typed); };
  if (std::count_if(known.begin(), known.end(), begins) != 1) return "";
  return *std::find_if(known.begin(), known.end(), begins);
}

}  // namespace stasis::cli
