// The test itself is the control thread; watch_test.cc counts its wakes.
#include "agent/growth.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

namespace stasis::agent {
namespace {

constexpr uint64_t kMib = 1u << 20;

class GrowthTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char path[] = "/tmp/stasis-growth.XXXXXX";
    close(mkstemp(path));
    path_ = path;
    notify_ = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    ASSERT_GE(inotify_add_watch(notify_, path, IN_ATTRIB), 0);
    growth::ResetAfterFork();
    growth::SetSignalFile(path);
  }
  void TearDown() override {
    growth::SetSignalFile(nullptr);
    growth::ResetAfterFork();
    close(notify_);
    unlink(path_.c_str());
  }
  bool Touched() const {
    char events[4096];
    return read(notify_, events, sizeof(events)) > 0;
  }

  std::string path_;
  int notify_ = -1;
};

TEST_F(GrowthTest, TellsMuchAtOnce) {
  EXPECT_EQ(growth::Tell(), -1);
  growth::Add(512 * kMib);
  EXPECT_EQ(growth::Tell(), -1);
  EXPECT_TRUE(Touched());
  growth::Add(64 * kMib);
  EXPECT_EQ(growth::Tell(), -1);
  EXPECT_TRUE(Touched()) << "an eighth";
}

TEST_F(GrowthTest, TellsLittleLater) {
  growth::Add(512 * kMib);
  growth::Tell();
  ASSERT_TRUE(Touched());
  growth::Add(8 * kMib);
  int wait_ms = growth::Tell();
  EXPECT_GT(wait_ms, 0);
  EXPECT_LE(wait_ms, 1001);
  EXPECT_FALSE(Touched());
  for (; wait_ms > 0; wait_ms = growth::Tell()) poll(nullptr, 0, wait_ms);
  EXPECT_TRUE(Touched());
  growth::Add(kMib);
  EXPECT_EQ(growth::Tell(), -1) << "less than a part in 256";
}

TEST_F(GrowthTest, IgnoresMemoryThatWasThereBefore) {
  growth::Add(512 * kMib);
  growth::Tell();
  ASSERT_TRUE(Touched());
  growth::Remove(256 * kMib);
  growth::Add(256 * kMib);
  EXPECT_EQ(growth::Tell(), -1);
  growth::Add(128 * kMib);
  growth::Remove(128 * kMib);
  for (int wait_ms = growth::Tell(); wait_ms > 0; wait_ms = growth::Tell()) {
    poll(nullptr, 0, wait_ms);
  }
  EXPECT_FALSE(Touched()) << "freed before it was told";
}

TEST_F(GrowthTest, TellsNothingWithoutAFile) {
  growth::SetSignalFile(nullptr);
  growth::Add(512 * kMib);
  EXPECT_EQ(growth::Tell(), -1);
  EXPECT_FALSE(Touched());
}

}  // namespace
}  // namespace stasis::agent
