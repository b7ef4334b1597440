// Checks that docs/check.md matches the table, and that all findings are in the table.
#include "health/findings.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <regex>
#include <set>

#include "base/file.h"
#include "health/driver_table.h"

namespace stasis::health {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Read(const std::string& path) {
  auto text = ReadFile(STASIS_SOURCES + path);
  EXPECT_TRUE(text) << text.error().ToString();
  return text.value_or("");
}

std::string Table(std::span<const Kind> kinds) {
  std::string table = "| id | what is looked at | what a finding means | what fixes it | |\n";
  table += "|---|---|---|---|---|\n";
  for (const Kind& kind : kinds) {
    table += fmt::format("| `{}` | {} | {} | {} | {} |\n", kind.id, kind.about, kind.meaning,
                         kind.fix, *kind.stops == '\0' ? "" : fmt::format("stops {}", kind.stops));
  }
  return table;
}

TEST(Findings, ThePageHasTheTablesOfTheCode) {
  const std::string page = Read("/docs/check.md");
  for (auto kinds : {MachineKinds(), TargetKinds()}) {
    const std::string table = Table(kinds);
    EXPECT_THAT(page, HasSubstr(table)) << "it should read:\n" << table;
  }
  std::string drivers = "| driver | from it on |\n|---|---|\n";
  for (const DriverAbility& row : DriverAbilities()) {
    drivers += fmt::format("| {} ({}) | {} |\n", row.driver, ApiName(row.since_api), row.able);
  }
  EXPECT_THAT(page, HasSubstr(drivers)) << "it should read:\n" << drivers;
}

TEST(Findings, HaveUniqueNames) {
  std::set<std::string> seen;
  for (auto kinds : {MachineKinds(), TargetKinds()}) {
    for (const Kind& kind : kinds) EXPECT_TRUE(seen.insert(kind.id).second) << kind.id;
  }
  EXPECT_STREQ(KindOf("io_uring").id, "io_uring");
  EXPECT_STREQ(KindOf("nobody knows").id, "other");
}

// Searches the sources of the checks for names of findings. KindOf() would turn a name that is not
// in the table into "other".
TEST(Findings, EveryNameInTheSourcesIsInTheTable) {
  const char* files[] = {"/src/health/host_checks.cc",
                         "/src/health/gpu_checks.cc",
                         "/src/health/store_checks.cc",
                         "/src/health/agent_check.cc",
                         "/src/health/check.cc",
                         "/src/health/program.cc",
                         "/src/criu/preflight.cc",
                         "/src/criu/probe.cc",
                         "/src/checks/before_dump.cc",
                         "/src/checks/survey.cc",
                         "/src/health/container_checks.cc",
                         "/src/containers/inspect.cc",
                         "/src/api/check_method.cc"};
  const std::regex named(
      R"re((?:Finding::Of\(|looked\.Add\(|AsFinding\(|Unanswered\(|collect\(|search\.Add\(fd, |OfProcess\(\s*member,|name = |Finding finding\{|finding = \{|return \{|\{(?=\s*"[a-z-]+", (?:Check|\[)))\s*"([a-z_-]+)")re",
      std::regex::ECMAScript | std::regex::multiline);
  std::set<std::string> seen;
  for (const char* file : files) {
    const std::string text = Read(file);
    for (std::sregex_iterator it(text.begin(), text.end(), named), end; it != end; ++it) {
      const std::string id = (*it)[1];
      seen.insert(id);
      EXPECT_STREQ(KindOf(id).id, id.c_str()) << file;
    }
  }
  for (auto kinds : {MachineKinds(), TargetKinds()}) {
    for (const Kind& kind : kinds) {
      if (kind.id != std::string_view("other")) {
        EXPECT_TRUE(seen.count(kind.id)) << kind.id << " is found nowhere";
      }
    }
  }
}

TEST(Findings, EveryFindingThatIsNotOkHasAFix) {
  EXPECT_EQ(Finding::Of("memlock", Level::kOk, "x").fix, "");
  EXPECT_EQ(Finding::Of("memlock", Level::kWarning, "x").fix, KindOf("memlock").fix);
  EXPECT_EQ(Finding::Of("memlock", Level::kCannot, "x", "do this").fix, "do this");
  EXPECT_TRUE(IsAble({Finding::Of("memlock", Level::kWarning, "x")}));
  EXPECT_FALSE(
      IsAble({Finding::Of("memlock", Level::kOk, "x"), Finding::Of("criu", Level::kCannot, "x")}));
}

TEST(DriverTable, SaysWhatAVersionIsAbleTo) {
  EXPECT_EQ(AbleTo(12030), "");
  EXPECT_THAT(Lacks(12030), HasSubstr("no checkpoint interface"));
  EXPECT_THAT(AbleTo(12040), HasSubstr("cuda-checkpoint"));
  EXPECT_THAT(Lacks(12070), HasSubstr("no checkpoint interface"));
  EXPECT_THAT(Lacks(12080), Not(HasSubstr("no checkpoint interface")));
  EXPECT_THAT(Lacks(12080), HasSubstr("--gpu-map"));
  EXPECT_EQ(Lacks(13000), "");
  EXPECT_THAT(AbleTo(13000), HasSubstr("--gpu-map"));
  EXPECT_EQ(ApiName(12080), "CUDA 12.8");
}

TEST(DriverTable, SaysWhatIsMissingOnArm64) {
  EXPECT_THAT(LacksOn("aarch64", "580.159.04"), HasSubstr("from 595 on"));
  EXPECT_THAT(LacksOn("aarch64", "594.99"), HasSubstr("--keep-context"));
  EXPECT_EQ(LacksOn("aarch64", "595.10"), "");
  EXPECT_EQ(LacksOn("aarch64", "610.1.2"), "");
  EXPECT_EQ(LacksOn("aarch64", ""), "") << "the version is unknown";
  EXPECT_EQ(LacksOn("x86_64", "580.159.04"), "");
  EXPECT_THAT(Read("/docs/check.md"), HasSubstr("On arm64 hosts it checkpoints from 595 on"));
}

}  // namespace
}  // namespace stasis::health
