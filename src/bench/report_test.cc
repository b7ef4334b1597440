#include "bench/report.h"
#include "plan/account.h"

#include <gtest/gtest.h>

namespace stasis::bench {
namespace {

plan::PhaseReport Phase(const char* name, double start_s, double seconds) {
  plan::PhaseReport phase;
  phase.name = name;
  phase.start_s = start_s;
  phase.seconds = seconds;
  return phase;
}

// Returns a round whose driver calls take this long, with one second more in total.
Round DriverRound(double out_s, double back_s) {
  Round round;
  auto& suspend = round.suspend.result.account;
  suspend.phases = {Phase("gpu-lock", 0, out_s / 4), Phase("gpu-checkpoint", 0, out_s * 3 / 4)};
  suspend.total_s = out_s + 0.5;
  round.suspend.seconds = out_s + 1;
  auto& resume = round.resume.result.account;
  resume.phases = {Phase("gpu-restore", 0, back_s), Phase("gpu-unlock", 0, 0)};
  resume.total_s = back_s + 0.5;
  round.resume.seconds = back_s + 1;
  return round;
}

const Ratio* Find(const Report& report, const std::string& name) {
  for (const Ratio& ratio : report.ratios) {
    if (ratio.name == name) return &ratio;
  }
  return nullptr;
}

double Value(const Report& report, const std::string& name) {
  const Ratio* ratio = Find(report, name);
  return ratio == nullptr ? -1 : ratio->value;
}

TEST(Stats, MedianOfOddEvenAndNothing) {
  EXPECT_EQ(StatsOf({3, 1, 2}).median, 2);
  EXPECT_EQ(StatsOf({4, 1, 2, 3}).median, 2.5);
  EXPECT_EQ(StatsOf({4, 1, 2, 3}).min, 1);
  EXPECT_EQ(StatsOf({4, 1, 2, 3}).max, 4);
  EXPECT_EQ(StatsOf({}).median, 0);
}

class ReportTest : public ::testing::Test {
 protected:
  ReportTest() {
    found.size_bytes = 40'000'000'000;
    found.wire = {1 << 30, 50e9, 20e9};  // 0.8 s to suspend, 2 s to resume
    SharedRun run;
    run.allocations = 40;
    run.cold = DriverRound(2, 2);
    run.cold.suspend.seconds = 3;
    for (double seconds : {0.9, 1.0, 7.0}) {
      Round round = DriverRound(0.1, 0.1);
      round.suspend.seconds = seconds;
      round.resume.seconds = seconds * 2;
      run.warm.push_back(round);
    }
    found.shared = {run};
    found.control = {DriverRound(0.4, 0.2)};
  }
  Measurements found;
};

TEST_F(ReportTest, TheLimitIsTheSlowerOfWireAndControl) {
  Report report = MakeReport(found);
  EXPECT_DOUBLE_EQ(report.suspend_limit_s, 0.8);
  EXPECT_DOUBLE_EQ(report.resume_limit_s, 2.0);
  EXPECT_DOUBLE_EQ(Value(report, "suspend_over_limit"), 1.0 / 0.8);
  EXPECT_DOUBLE_EQ(Value(report, "resume_over_limit"), 1.0);
  EXPECT_FALSE(Find(report, "suspend_over_limit")->met());
  EXPECT_TRUE(Find(report, "resume_over_limit")->met());
  EXPECT_DOUBLE_EQ(Value(report, "cold_over_warm_suspend"), 3.0);
  found.control = {DriverRound(1.6, 4)};
  report = MakeReport(found);
  EXPECT_DOUBLE_EQ(report.suspend_limit_s, 1.6);
  EXPECT_DOUBLE_EQ(report.resume_limit_s, 4.0);
}

TEST_F(ReportTest, ThePartsOfTheMoversWorkAreShown) {
  for (size_t i = 0; i < found.shared[0].warm.size(); ++i) {
    auto& result = found.shared[0].warm[i].suspend.result;
    result.shared_bytes = 1;
    result.saved.hashing_s = 0.011 + static_cast<double>(i);
  }
  const Report report = MakeReport(found);
  EXPECT_TRUE(report.control_suspend.parts.empty());
  const auto& parts = report.shared[0].suspend.parts;
  ASSERT_EQ(parts.size(), 5u);
  EXPECT_EQ(parts[1].name, "hashing_s");
  EXPECT_DOUBLE_EQ(parts[1].seconds.min, 0.011);
}

// Uses the setting with which the driver was faster, and only the driver's own calls.
TEST_F(ReportTest, TheBetterOfTheDriversSettingsCounts) {
  EXPECT_EQ(Find(MakeReport(found), "suspend_speedup"), nullptr);
  found.driver_alone = {{"madvise", {DriverRound(20, 6), DriverRound(22, 8)}},
                        {"always", {DriverRound(14, 12)}}};
  Report report = MakeReport(found);
  EXPECT_DOUBLE_EQ(Value(report, "suspend_speedup"), 14.0);
  EXPECT_DOUBLE_EQ(Value(report, "resume_speedup"), 3.5);
  EXPECT_FALSE(Find(report, "suspend_speedup")->met());
}

TEST_F(ReportTest, OtherAllocationsAreComparedWithTheFirst) {
  SharedRun small = found.shared[0];
  small.allocations = 20000;
  for (Round& round : small.warm) round.suspend.seconds *= 1.5;
  found.shared.push_back(small);
  EXPECT_DOUBLE_EQ(Value(MakeReport(found), "suspend_of_20000_over_first"), 1.5);
}

TEST_F(ReportTest, TheLookIsTheTimeOutsideOfThePlan) {
  found.driver_alone = {{"madvise", {DriverRound(4, 4)}}};
  const auto phases = MakeReport(found).driver_alone[0].suspend.phases;
  ASSERT_EQ(phases.size(), 3u);
  EXPECT_EQ(phases[0].name, "look");
  EXPECT_DOUBLE_EQ(phases[0].seconds.median, 0.5);
  EXPECT_EQ(phases[2].name, "gpu-checkpoint");
  EXPECT_DOUBLE_EQ(phases[2].seconds.median, 3.0);
}

}  // namespace
}  // namespace stasis::bench
