#include "checks/readable.h"

#include <gtest/gtest.h>

#include <atomic>

#include "gpu_state/testing/world.h"

namespace stasis::checks {
namespace {

TEST(ReadableTest, AnOrdinaryProgramIsReadable) {
  fakes::Sleepers program(2);
  const auto members = program.Tree().members;
  EXPECT_TRUE(CheckAgentReadable(members, ReadingDeadline(0)));
  EXPECT_TRUE(CheckStateReadable(members, ReadingDeadline(0)));
}

TEST(ReadableTest, EndedProcessesAndEmptyListsAreNoErrors) {
  fakes::Sleepers program(2);
  const auto members = program.Tree().members;
  fakes::Sleepers::Kill(members[1].id);
  EXPECT_TRUE(CheckStateReadable(members, ReadingDeadline(0)));
  EXPECT_TRUE(CheckStateReadable({}, Deadline::In(std::chrono::milliseconds(0))));
}

TEST(ReadableTest, ThePhaseTimeoutIsTheDeadline) {
  EXPECT_LE(ReadingDeadline(0.5).PollTimeout(), 500);
  EXPECT_GT(ReadingDeadline(0).PollTimeout(), 10000);
}

}  // namespace
}  // namespace stasis::checks
