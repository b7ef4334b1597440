#include "gpu_state/suspended.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

#include "base/file.h"

namespace stasis::gpu_state {
namespace {

class SuspendedTest : public testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/stasis-suspended-test-XXXXXX";
    ASSERT_NE(::mkdtemp(folder), nullptr);
    paths_ = {folder, folder};
  }
  void TearDown() override { EXPECT_TRUE(RemoveTree(paths_.run)); }

  process::ProcessId Living() { return process::ReadStat({::getpid()})->id; }
  // No process has this start time.
  process::ProcessId Ended() { return {{::getpid()}, 1}; }

  Paths paths_;
};

TEST_F(SuspendedTest, OnlyRecordsOfEndedProcessesAreSwept) {
  ASSERT_TRUE(SaveSuspended(paths_, {Living(), {{"GPU-1"}}, 4096, 1}));
  ASSERT_TRUE(SaveSuspended(paths_, {Ended(), {{"GPU-1"}}, 4096, 1}));
  SweepSuspended(paths_);
  EXPECT_FALSE(LoadSuspended(paths_, Ended()));
  auto living = LoadSuspended(paths_, Living());
  ASSERT_TRUE(living);
  EXPECT_EQ(living->device_bytes, 4096u);
}

TEST_F(SuspendedTest, AContextThatWasKeptIsRemembered) {
  SuspendedProcess process{Living(), {{"GPU-1"}}, 4096, 1};
  ASSERT_TRUE(SaveSuspended(paths_, process));
  EXPECT_FALSE(LoadSuspended(paths_, Living())->context_kept);
  process.context_kept = true;
  ASSERT_TRUE(SaveSuspended(paths_, process));
  EXPECT_TRUE(LoadSuspended(paths_, Living())->context_kept);
}

TEST_F(SuspendedTest, TheVisibleGpusAreRemembered) {
  SuspendedProcess process{Living(), {{"GPU-1"}}, 4096, 1};
  process.visible = {{"GPU-1"}, {"GPU-2"}};
  ASSERT_TRUE(SaveSuspended(paths_, process));
  EXPECT_EQ(LoadSuspended(paths_, Living())->visible, process.visible);
}

TEST_F(SuspendedTest, ARecordTornByAPowerFailureIsSwept) {
  ASSERT_TRUE(SaveSuspended(paths_, {Living(), {}, 0, 1}));
  std::string torn = paths_.run + "/suspended/4711-17.json";
  ASSERT_TRUE(WriteFileDurably(torn, ""));
  SweepSuspended(paths_);
  EXPECT_FALSE(PathExists(torn));
  EXPECT_TRUE(LoadSuspended(paths_, Living()));
}

TEST_F(SuspendedTest, ARecordThatASuspendIsWritingIsNotSwept) {
  ASSERT_TRUE(SaveSuspended(paths_, {Living(), {}, 0, 1}));
  std::string half = paths_.run + "/suspended/4711-17.json.a1b2c3";
  ASSERT_TRUE(WriteFileDurably(half, "{"));
  SweepSuspended(paths_);
  EXPECT_TRUE(PathExists(half));
}

TEST_F(SuspendedTest, TheDriverGetsTheMapFromTheGpusOfItsCheckpoint) {
  const device::GpuUuid a{"GPU-a"}, b{"GPU-b"};
  const device::GpuMap exchanged = {{a, b}, {b, a}};
  ASSERT_TRUE(SaveSuspended(paths_, {Living(), {a}, 4096, 1}));
  EXPECT_EQ(MapForDriver(paths_, Living(), exchanged), exchanged);
  ASSERT_TRUE(RecordMove(paths_, Living(), exchanged));
  EXPECT_EQ(LoadSuspended(paths_, Living())->device_bytes, 4096u);
  EXPECT_EQ(MapForDriver(paths_, Living(), {}), (device::GpuMap{{b, a}, {a, b}}));
  EXPECT_TRUE(MapForDriver(paths_, Living(), exchanged).empty()) << "it is there already";
  EXPECT_FALSE(CheckNotMoved(paths_, Living()));
  ASSERT_TRUE(RecordMove(paths_, Living(), {}));
  EXPECT_EQ(MapForDriver(paths_, Living(), exchanged), exchanged);
  EXPECT_TRUE(CheckNotMoved(paths_, Living()));
}

TEST_F(SuspendedTest, RecordsOfOtherPidNamespacesAreIgnoredAndKept) {
  ASSERT_TRUE(MakeDirs(paths_.run + "/suspended"));
  std::string path = paths_.run + "/suspended/" + std::to_string(::getpid()) + "-1.json";
  ASSERT_TRUE(WriteFileDurably(
      path, "{\"pid\":" + std::to_string(::getpid()) +
                ",\"start_time\":1,\"pid_namespace\":1,\"gpus\":[],\"device_bytes\":0,"
                "\"since_unix_s\":1}"));
  SweepSuspended(paths_);
  EXPECT_TRUE(PathExists(path));
  EXPECT_FALSE(LoadSuspended(paths_, Ended()));
}

// A home may be shared by machines.
TEST_F(SuspendedTest, RecordsOfOtherMachinesAreIgnoredAndKept) {
  ASSERT_TRUE(SaveSuspended(paths_, {Ended(), {{"GPU-1"}}, 4096, 1}));
  ASSERT_TRUE(LoadSuspended(paths_, Ended()));
  const std::string path = paths_.run + "/suspended/" + std::to_string(::getpid()) + "-1.json";
  std::string record = *ReadFile(path, 1 << 20);
  record.replace(record.find(*process::BootId()), 36, "0cb80a29-5a5e-4b2a-9d5b-3a8dfbd2b3c1");
  ASSERT_TRUE(WriteFileDurably(path, record));
  EXPECT_FALSE(LoadSuspended(paths_, Ended()));
  SweepSuspended(paths_);
  EXPECT_TRUE(PathExists(path));
}

}  // namespace
}  // namespace stasis::gpu_state
