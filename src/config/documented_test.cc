// Checks that docs/config.md matches the table and that the product reads no other environment
// variable.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <regex>
#include <set>

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
  const std::regex reads(R"re((?:getenv|Env|variable)\("(STASIS_[A-Z_]+)"\))re");
  std::set<std::string> seen;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(STASIS_SOURCES "/src")) {
    const std::string path = entry.path().string();
    if (!path.ends_with(".cc") && !path.ends_with(".h")) continue;
    if (path.ends_with("_test.cc") || path.find("/testing") != std::string::npos) continue;
    const std::string text = Read(path);
    for (std::sregex_iterator it(text.begin(), text.end(), reads), end; it != end; ++it) {
      seen.insert((*it)[1]);
    }
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
