#include "slurm/node_files.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>

#include "base/file.h"

namespace stasis::slurm {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class NodeFilesTest : public ::testing::Test {
 protected:
  NodeFilesTest() { std::filesystem::create_directory(folder_); }
  ~NodeFilesTest() override { std::filesystem::remove_all(folder_); }

  const std::string folder_ = ::testing::TempDir() + "node_files_test" + std::to_string(::getpid());
  NodeFiles node_{folder_ + "/slurm-7.0.n1"};
  const std::string task_ = folder_ + "/slurm-7.0.3";
};

TEST_F(NodeFilesTest, ExitCodes) {
  EXPECT_EQ(ReadCode(task_), std::nullopt);
  ASSERT_TRUE(WriteCode(task_, 0));
  EXPECT_EQ(ReadCode(task_), 0);
  ASSERT_TRUE(WriteCode(task_, 137));
  EXPECT_EQ(ReadCode(task_), 137);
  for (const char* damaged : {"", "\n", "3", "256\n", "-1\n", "3 \n", "3\n\n"}) {
    ASSERT_TRUE(ReplaceFile(CodeFile(task_), damaged));
    EXPECT_EQ(ReadCode(task_), std::nullopt) << damaged;
  }
  RemoveTaskFiles(task_);
  EXPECT_FALSE(PathExists(CodeFile(task_)));
}

TEST_F(NodeFilesTest, SignalsAreTakenOnce) {
  ASSERT_TRUE(node_.BeginRun(0));
  ASSERT_TRUE(node_.PutSignal({3, 10}));
  ASSERT_TRUE(node_.PutSignal({3, 10}));
  ASSERT_TRUE(node_.PutSignal({0, 12}));
  EXPECT_THAT(node_.TakeSignals(), UnorderedElementsAre(TaskSignal{3, 10}, TaskSignal{0, 12}));
  EXPECT_THAT(node_.TakeSignals(), IsEmpty());
}

TEST_F(NodeFilesTest, SignalsThatCannotBeWrittenAreKept) {
  std::vector<TaskSignal> signals = {{3, 9}, {1, 10}};
  EXPECT_FALSE(node_.PutSignals(signals));  // there is no folder
  EXPECT_THAT(signals, ElementsAre(TaskSignal{3, 9}, TaskSignal{1, 10}));
  ASSERT_TRUE(node_.BeginRun(0));
  EXPECT_TRUE(node_.PutSignals(signals));
  EXPECT_THAT(signals, IsEmpty());
  EXPECT_THAT(node_.TakeSignals(), UnorderedElementsAre(TaskSignal{3, 9}, TaskSignal{1, 10}));
}

TEST_F(NodeFilesTest, OtherNamesAreNoSignals) {
  ASSERT_TRUE(node_.BeginRun(0));
  for (const char* name : {"3", "3.", "3.0", "3.65", "-1.9", ".9", "3.9x", "x.9"}) {
    ASSERT_TRUE(ReplaceFile(node_.path() + ".signals/" + name, ""));
  }
  EXPECT_THAT(node_.TakeSignals(), IsEmpty());
}

TEST_F(NodeFilesTest, ANewRunForgetsSignalsAndIsNotSynced) {
  EXPECT_FALSE(node_.IsSynced());
  ASSERT_TRUE(node_.BeginRun(0));
  EXPECT_FALSE(node_.IsSynced());
  ASSERT_TRUE(node_.MarkSynced(node_.ReadRun()));
  EXPECT_TRUE(node_.IsSynced());
  ASSERT_TRUE(node_.PutSignal({1, 10}));
  ASSERT_TRUE(node_.BeginRun(1));
  EXPECT_FALSE(node_.IsSynced());
  EXPECT_THAT(node_.TakeSignals(), IsEmpty());
}

TEST_F(NodeFilesTest, Tasks) {
  EXPECT_THAT(node_.ReadTasks(), IsEmpty());
  ASSERT_TRUE(node_.WriteTasks({"slurm-7.0.2", "slurm-7.0.3"}));
  EXPECT_THAT(node_.ReadTasks(), ElementsAre("slurm-7.0.2", "slurm-7.0.3"));
  node_.Remove();
  EXPECT_THAT(node_.ReadTasks(), IsEmpty());
}

}  // namespace
}  // namespace stasis::slurm
