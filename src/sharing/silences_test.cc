#include "sharing/silences.h"

#include <gtest/gtest.h>

namespace stasis::sharing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Ids = std::set<std::string>;

constexpr Time kBegin = seconds(1000);

Silences::HasAnswered Says(std::optional<bool> answered) {
  return [answered](const std::string&, Time) { return answered; };
}

TEST(SilencesTest, AProgramThatDoesNotAnswerIsNotAskedUntilItHasAnswered) {
  Silences silences;
  EXPECT_EQ(silences.Note({}, {"stopped"}, kBegin), Ids{"stopped"});
  EXPECT_EQ(silences.Lasting(), Ids{"stopped"});
  EXPECT_EQ(silences.Note({"stopped"}, {"stopped"}, kBegin + seconds(1)), Ids());
  EXPECT_FALSE(silences.End(Says(false), kBegin + seconds(1000)).any);
  EXPECT_TRUE(silences.End(Says(true), kBegin + seconds(1000)).any);
  EXPECT_EQ(silences.Lasting(), Ids());
}

TEST(SilencesTest, OneThatAnswersItsWatchOnlyIsAskedLessAndLessOften) {
  Silences silences;
  Time now = kBegin;
  for (const int pause_ms : {100, 200, 400, 800}) {
    const milliseconds pause(pause_ms);
    silences.Note({}, {"false"}, now);
    const auto ended = silences.End(Says(true), now);
    EXPECT_FALSE(ended.any);
    EXPECT_EQ(ended.next, now + pause);
    now += pause;
    EXPECT_TRUE(silences.End(Says(true), now).any);
  }
  for (int i = 0; i < 100; ++i) silences.Note({}, {"false"}, now);
  EXPECT_EQ(silences.End(Says(true), now).next, now + Silences::kLongest);
}

TEST(SilencesTest, OneThatAnswersAgainIsForgivenAfterAWhile) {
  Silences silences;
  for (int i = 0; i < 5; ++i) silences.Note({}, {"slow"}, kBegin);
  Time now = kBegin + Silences::kLongest;
  EXPECT_TRUE(silences.End(Says(true), now).any);
  silences.Note({}, {}, now);
  silences.Note({}, {"slow"}, now);
  EXPECT_GT(silences.End(Says(true), now).next, now + Silences::kFirst) << "it has just begun";
  now += Silences::kLongest;
  EXPECT_TRUE(silences.End(Says(true), now).any);
  now += Silences::kLongest;
  silences.Note({}, {}, now);
  silences.Note({}, {"slow"}, now);
  EXPECT_EQ(silences.End(Says(true), now).next, now + Silences::kFirst);
}

TEST(SilencesTest, OneWithoutAWatchIsAskedFromTimeToTime) {
  Silences silences;
  silences.Note({}, {"unknown"}, kBegin);
  EXPECT_EQ(silences.End(Says(std::nullopt), kBegin).next, kBegin + Silences::kLongest);
  EXPECT_TRUE(silences.End(Says(std::nullopt), kBegin + Silences::kLongest).any);
}

TEST(SilencesTest, ProgramsThatHaveEndedAreForgotten) {
  Silences silences;
  silences.Note({}, {"ended", "stopped"}, kBegin);
  silences.Forget([](const std::string& id) { return id == "stopped"; });
  EXPECT_EQ(silences.Lasting(), Ids{"stopped"});
}

}  // namespace
}  // namespace stasis::sharing
