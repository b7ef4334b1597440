// Checks that docs/config.md matches the table and that the product reads no other environment
// variable.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <set>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "config/table.h"

namespace stasis::config {
namespace {

using ::testing::HasSubstr;

std::string Read(const std::string& path) {
  auto text = ReadFile(path);
  EXPECT_TRUE(text) << text.error().ToString();
  return text.value_or("");
}
std::string Page() { return Read(STASIS_SOURCES "/docs/config.md"); }

// Returns X for each `getenv("X")`, `…Env("X")` and `variable("X")` in which X begins with STASIS_.
std::vector<std::string> VariablesReadBy(std::string_view text) {
  constexpr std::string_view kOpen = "(\"STASIS_";
  std::vector<std::string> found;
  for (size_t at = text.find(kOpen); at != text.npos; at = text.find(kOpen, at + 1)) {
    const std::string_view before = text.substr(0, at), name = text.substr(at + 2);
    if (!before.ends_with("getenv") && !before.ends_with("Env") && !before.ends_with("variable")) {
      continue;
    }
    const std::string_view variable = name.substr(0, name.find('"'));
    if (name.substr(variable.size()).starts_with("\")")) found.emplace_back(variable);
  }
  return found;
}

TEST(Documented, ThePageHasTheTableOfTheCode) {
  std::string table = "| key | what it may be | default | variable | |\n|---|---|---|---|---|\n";
  for (const Row& row : Rows()) {
    table += fmt::format("| `{}` | {} | {} | `{}` | {} |\n", row.key, Expected(row),
                         row.initial[0] == '\0' ? row.unset : fmt::format("`{}`", row.initial),
                         row.variable, row.meaning);
  }
  EXPECT_THAT(Page(), HasSubstr(table)) << "the table in docs/config.md must be:\n" << table;
}

// An environment variable that is not a setting must be in the page's list of test switches.
TEST(Documented, EveryVariableThatIsReadIsASettingOrATestSwitch) {
  std::set<std::string> settings = {"STASIS_CONFIG"};
  for (const Row& row : Rows()) settings.insert(row.variable);
  const std::string page = Page();
  std::set<std::string> seen;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(STASIS_SOURCES "/src")) {
    const std::string path = entry.path().string();
    if (!path.ends_with(".cc") && !path.ends_with(".h")) continue;
    if (path.ends_with("_test.cc") || path.find("/testing") != std::string::npos) continue;
    const std::string text = Read(path);
    for (const std::string& variable : VariablesReadBy(text)) seen.insert(variable);
  }
  EXPECT_TRUE(seen.count("STASIS_FAULT")) << "the search found no variable";
  for (const std::string& variable : seen) {
    if (settings.count(variable) == 0) {
      EXPECT_THAT(page, HasSubstr(fmt::format("\n| `{}` |", variable)))
          << variable << " is neither a setting nor among the tests' switches";
    }
  }
}

}  // namespace
}  // namespace stasis::config
