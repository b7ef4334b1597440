#include "slurm/step_files.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <filesystem>

namespace stasis::slurm {
namespace {

using ::testing::UnorderedElementsAre;

class StepFilesTest : public ::testing::Test {
 protected:
  StepFilesTest() { std::filesystem::create_directory(folder_); }
  ~StepFilesTest() override { std::filesystem::remove_all(folder_); }

  StepFiles Open(int restarts) {
    auto files = StepFiles::Open("slurm-7.0.0", restarts, environment_.data());
    EXPECT_TRUE(files) << files.error().ToString();
    return *files;
  }

  const std::string folder_ = ::testing::TempDir() + "/step_files_test";
  std::string state_ = "STASIS_STATE_DIR=" + folder_ + "/state";
  std::vector<char*> environment_ = {state_.data(), nullptr};
};

TEST_F(StepFilesTest, VariablesAreThoseOfTheCurrentStep) {
  char* first[] = {const_cast<char*>("SLURM_JOB_ID=7"), const_cast<char*>("SLURM_NODEID=1"),
                   const_cast<char*>("PATH=/bin"), nullptr};
  char* second[] = {const_cast<char*>("SLURM_NODEID=2 3"), const_cast<char*>("SLURM_X/../Y=1"),
                    nullptr};
  auto path = Open(0).WriteVariables(first);
  ASSERT_TRUE(path) << path.error().ToString();
  EXPECT_THAT(*ListDir(*path), UnorderedElementsAre("SLURM_JOB_ID", "SLURM_NODEID"));
  ASSERT_EQ(*Open(1).WriteVariables(second), *path);
  EXPECT_THAT(*ListDir(*path), UnorderedElementsAre("SLURM_NODEID"));
  EXPECT_EQ(*ReadFile(*path + "/SLURM_NODEID"), "2 3\n");
}

TEST_F(StepFilesTest, ScriptStaysUntilTheJobHasFinished) {
  const std::string script = folder_ + "/script";
  ASSERT_TRUE(ReplaceFile(script, "first"));
  auto copy = Open(0).KeepScript(script);
  ASSERT_TRUE(copy) << copy.error().ToString();
  struct stat status {};
  ASSERT_EQ(::stat(copy->c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
  ASSERT_TRUE(ReplaceFile(script, "second"));
  EXPECT_EQ(*Open(1).KeepScript(script), *copy);
  EXPECT_EQ(*ReadFile(*copy), "first");
  ASSERT_TRUE(Open(0).KeepScript(script));
  EXPECT_EQ(*ReadFile(*copy), "second");
  Open(1).Remove();
  EXPECT_FALSE(PathExists(*copy));
}

TEST_F(StepFilesTest, LogHasTheMessagesOfEarlierSteps) {
  const StepFiles files = Open(0);
  ASSERT_TRUE(WriteAll(files.OpenLog()->get(), "dump failed\n"));
  ASSERT_TRUE(WriteAll(Open(1).OpenLog()->get(), "restored\n"));
  EXPECT_EQ(*ReadFile(files.log_path()), "dump failed\nrestored\n");
  Open(0);
  EXPECT_FALSE(PathExists(files.log_path()));
}

TEST_F(StepFilesTest, HomeNamesTheFolder) {
  std::string home = "HOME=" + folder_;
  environment_ = {home.data(), nullptr};
  EXPECT_EQ(Open(0).log_path(), folder_ + "/.local/state/stasis/slurm/slurm-7.0.0.log");
  environment_ = {nullptr};
  EXPECT_FALSE(StepFiles::Open("j", 0, environment_.data()));
}

}  // namespace
}  // namespace stasis::slurm
