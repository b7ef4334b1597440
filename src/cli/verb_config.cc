#include <fmt/format.h>

#include "cli/table.h"
#include "cli/verb.h"

namespace stasis::cli {
namespace {

using config::From;
using config::Origin;

constexpr const char* kFrom[] = {"default", "file", "environment"};

std::string Describe(const config::Row& row, const Origin& origin) {
  switch (origin.from) {
    case From::kFile:
      return fmt::format("{}:{}", origin.file, origin.line);
    case From::kEnvironment:
      return fmt::format("${}", row.variable);
    case From::kDefault:
      break;
  }
  return "default";
}

nlohmann::json ValueOf(const config::Row& row, const config::Settings& settings) {
  const std::string text = config::Text(row, settings);
  if (text.empty()) return nullptr;
  return std::visit([&](auto member) -> nlohmann::json { return settings.*member; }, row.member);
}

Outcome Show(const Globals& globals) {
  const config::Config& config = globals.config;
  const config::Settings defaults;
  std::vector<std::vector<std::string>> rows = {{"KEY", "FROM", "VALUE"}};
  auto settings = nlohmann::json::array();
  for (size_t i = 0; i < config::Rows().size(); ++i) {
    const config::Row& row = config::Rows()[i];
    const Origin& origin = config.origins[i];
    const std::string text = config::Text(row, config.settings);
    rows.push_back(
        {row.key, Describe(row, origin), text.empty() ? fmt::format("({})", row.unset) : text});
    const bool in_file = origin.from == From::kFile;
    settings.push_back(
        {{"key", row.key},
         {"value", ValueOf(row, config.settings)},
         {"from", kFrom[static_cast<int>(origin.from)]},
         {"file", in_file ? nlohmann::json(origin.file) : nlohmann::json()},
         {"line", in_file ? nlohmann::json(origin.line) : nlohmann::json()},
         {"variable", row.variable},
         {"default", ValueOf(row, defaults)},
         {"unset", row.unset[0] == '\0' ? nlohmann::json() : nlohmann::json(row.unset)},
         {"expected", config::Expected(row)},
         {"meaning", row.meaning}});
  }
  std::string text = FormatTable(rows);
  auto files = nlohmann::json::array();
  for (const config::Source& file : config.files) {
    text += fmt::format("{} {}\n", file.found ? "read:         " : "not found:    ", file.path);
    files.push_back({{"path", file.path}, {"found", file.found}});
  }
  PrintResult(globals, text, {{"files", files}, {"settings", settings}});
  return 0;
}

}  // namespace

void RegisterConfig(App app, const std::function<void(Action)>& select) {
  auto verb = app.add_subcommand("config", "Show the settings of all commands");
  verb->require_subcommand(1);
  verb->add_subcommand("show", "Show every setting with its value and its source")->callback([=] {
    select(Show);
  });
}

}  // namespace stasis::cli
