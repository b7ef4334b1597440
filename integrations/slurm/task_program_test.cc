#include "slurm/task_program.h"

#include <gmock/gmock.h>
#include <stdlib.h>

namespace stasis::slurm {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TaskProgram Example() {
  return {
      {"train", "--name", "", "a\nb"}, {"A=1", "B=x=y", "C=\xff"}, "/home/x", 027, {0, 5}, true};
}

TEST(TaskProgramTest, IsReadAsItWasWritten) {
  auto read = ParseTaskProgram(FormatTaskProgram(Example()));
  ASSERT_TRUE(read) << read.error().ToString();
  EXPECT_EQ(read->argv, Example().argv);
  EXPECT_EQ(read->environment, Example().environment);
  EXPECT_EQ(read->directory, "/home/x");
  EXPECT_EQ(read->umask, 027u);
  EXPECT_THAT(read->cpus, ElementsAre(0, 5));
  EXPECT_TRUE(read->one_output);
}

TEST(TaskProgramTest, ADamagedDescriptionIsAnError) {
  const std::string text = FormatTaskProgram(Example());
  for (size_t length = 0; length < text.size(); ++length) {
    EXPECT_FALSE(ParseTaskProgram(std::string_view(text).substr(0, length))) << length;
  }
  EXPECT_FALSE(ParseTaskProgram(text + "x"));
  EXPECT_FALSE(ParseTaskProgram("stasis-start-2" + text.substr(14)));
  TaskProgram without = Example();
  without.argv.clear();
  EXPECT_FALSE(ParseTaskProgram(FormatTaskProgram(without)));
  without = Example();
  without.cpus = {1 << 30};
  EXPECT_FALSE(ParseTaskProgram(FormatTaskProgram(without)));
}

TEST(TaskProgramTest, DescribesThisProcess) {
  ::setenv("STASIS_TASK_LD_PRELOAD", "x.so", 1);
  auto program = DescribeProgram({"train"}, {"LD_X=x.so", "STASIS_TASK_LD_PRELOAD="});
  ::unsetenv("STASIS_TASK_LD_PRELOAD");
  ASSERT_TRUE(program) << program.error().ToString();
  EXPECT_THAT(program->environment, Contains("LD_X=x.so"));
  EXPECT_THAT(program->environment, Not(Contains(HasSubstr("STASIS_TASK_LD_PRELOAD"))));
  EXPECT_FALSE(program->cpus.empty());
  EXPECT_TRUE(program->directory.starts_with('/'));
}

TEST(TaskProgramTest, ChangesOfOneEnvironmentApplyToAnother) {
  EXPECT_THAT(WithChanges({"RANK=1", "LD_PRELOAD=mine.so", "GONE=1", "SAME=1"},
                          {"RANK=0", "LD_PRELOAD=mine.so", "GONE=1", "SAME=0"},
                          {"RANK=0", "LD_PRELOAD=agent.so:mine.so", "SAME=0", "NEW=1"}),
              ElementsAre("RANK=1", "SAME=1", "LD_PRELOAD=agent.so:mine.so", "NEW=1"));
}

Status Check(std::vector<std::string> first, std::vector<std::string> second) {
  TaskProgram one, two;
  one.environment = std::move(first);
  two.environment = std::move(second);
  return CheckGpus({"slurm-7.0.0", "slurm-7.0.1"}, {one, two});
}

TEST(TaskProgramTest, TasksMustHaveTheSameGpus) {
  EXPECT_TRUE(Check({"CUDA_VISIBLE_DEVICES=0,1", "SLURM_LOCALID=0"},
                    {"CUDA_VISIBLE_DEVICES=0,1", "SLURM_LOCALID=1"}));
  const Status different = Check({"CUDA_VISIBLE_DEVICES=0"}, {"CUDA_VISIBLE_DEVICES=1"});
  ASSERT_FALSE(different);
  EXPECT_THAT(different.error().message,
              HasSubstr("CUDA_VISIBLE_DEVICES is \"0\" for slurm-7.0.0 and \"1\" for slurm-7.0.1"));
  EXPECT_THAT(different.error().hint, HasSubstr("--gpu-bind=none"));
  EXPECT_FALSE(Check({"ROCR_VISIBLE_DEVICES=0"}, {}));
}

TEST(TaskProgramTest, SlurmMustNotBindGpusToTasks) {
  auto check = [](const std::string& bind) {
    const std::vector<std::string> environment = {"CUDA_VISIBLE_DEVICES=0",
                                                  "SLURMD_TRES_BIND=" + bind};
    return Check(environment, environment);
  };
  for (const char* bound :
       {"gpu:single:2", "gres/gpu:per_task:1", "gres/nic:closest+gres/gpu:map:0",
        "gres/gpu:verbose,closest", "gres/shard:per_task:1"}) {
    const Status status = check(bound);
    ASSERT_FALSE(status) << bound;
    EXPECT_THAT(status.error().message, HasSubstr(bound));
  }
  for (const char* unbound : {"", "gpu:none", "gres/gpu:none", "gres/gpu:verbose,none",
                              "gres/nic:closest", "gres/nic:closest+gres/gpu:none"}) {
    EXPECT_TRUE(check(unbound)) << unbound;
  }
  // Options of the job, which a step may override with --gpu-bind=none.
  const std::vector<std::string> of_job = {"SLURM_GPUS_PER_TASK=1", "SLURM_GPU_BIND=single:1",
                                           "SLURM_TRES_BIND=gres/gpu:single:1"};
  EXPECT_TRUE(Check(of_job, of_job));
}

}  // namespace
}  // namespace stasis::slurm
