#include "bench/restore_report.h"

#include <gtest/gtest.h>

namespace stasis::bench {
namespace {

nlohmann::json TimedPhase(const char* name, double start_s, double seconds) {
  return {{"name", name}, {"start_s", start_s}, {"seconds", seconds}};
}

TEST(RestoreReport, AStageIsTheTimeInWhichItsPhasesRan) {
  const nlohmann::json phases = {TimedPhase("image-verify", 0, 1),  TimedPhase("cpu-read", 1, 2),
                                 TimedPhase("cpu-restore", 3, 4),   TimedPhase("load-room", 0, 1),
                                 TimedPhase("data-load", 0.5, 4.5), TimedPhase("gpu-restore", 7, 1),
                                 TimedPhase("adopt", 8, 5)};
  const StageTimes times = StagesOf({{"phases", phases}});
  EXPECT_DOUBLE_EQ(times.storage, 3);
  EXPECT_DOUBLE_EQ(times.cpu, 4);
  EXPECT_DOUBLE_EQ(times.gpu, 6);  // phases that overlap count once, and the pause does not
}

TEST(RestoreReport, TimesAreMediansOfTheRounds) {
  RestoreSeries series;
  for (double seconds : {3.0, 1.0, 2.0}) {
    RestoreRound round;
    round.command_s = seconds;
    round.answer_s = seconds / 2;
    const auto phases = nlohmann::json::array({TimedPhase("cpu-restore", 0, seconds)});
    round.account = std::make_shared<const nlohmann::json>(nlohmann::json{{"phases", phases}});
    series.rounds.push_back(std::move(round));
  }
  const RestoreStats stats = StatsOfSeries(series);
  EXPECT_DOUBLE_EQ(stats.command.median, 2);
  EXPECT_DOUBLE_EQ(stats.answer.max, 1.5);
  EXPECT_DOUBLE_EQ(stats.cpu.min, 1);
  EXPECT_DOUBLE_EQ(stats.storage.median, 0);
}

}  // namespace
}  // namespace stasis::bench
