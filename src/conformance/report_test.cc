#include "conformance/report.h"

#include <gtest/gtest.h>

namespace stasis::conformance {
namespace {

TEST(ReportTest, IsBounded) {
  Report report;
  Step step;
  step.message = step.log = std::string(64 << 10, 'x') + "the end";
  step.result = nlohmann::json(std::string(64 << 10, 'x')).dump();
  report.steps.assign(30, step);
  report.machine.assign(1, {"name", std::string(64 << 10, 'y')});
  const auto document = ToJson(report);
  EXPECT_LT(document.dump().size(), 1u << 20);
  const auto& first = document["steps"][0];
  EXPECT_TRUE(first["log"].get<std::string>().ends_with("the end"));
  EXPECT_TRUE(first["result"].is_null());
}

TEST(ReportTest, FailsWithAFailedOrAnUnfinishedStep) {
  Report report;
  report.steps.resize(2);
  EXPECT_TRUE(report.passed());
  report.unfinished = "dump";
  EXPECT_FALSE(report.passed());
  report.unfinished.clear();
  report.steps[1].verdict = Verdict::kFailed;
  EXPECT_FALSE(report.passed());
}

}  // namespace
}  // namespace stasis::conformance
