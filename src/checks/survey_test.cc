#include "checks/survey.h"

#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <unistd.h>

#include "gpu_state/testing/world.h"

namespace stasis::checks {
namespace {

using device::ProcessState;
using fakes::World;

Target TargetOf(World& world) {
  return {std::to_string(world.program.root().pid.value), "", world.program.root()};
}

Error RefusalOf(World& world, const Target& target) {
  auto survey = SurveyTarget(world.services, target);
  return survey ? Error{Code::kOk} : survey.error();
}

TEST(SurveyTest, ListsTheGpuProcessesOfTheTree) {
  World world(3);
  world.program.At(2).uses_gpu = false;
  auto survey = SurveyTarget(world.services, TargetOf(world));
  ASSERT_TRUE(survey) << survey.error().ToString();
  EXPECT_EQ(survey->tree.members.size(), 3u);
  ASSERT_EQ(survey->device_processes.size(), 2u);
  EXPECT_EQ(survey->device_processes[1].id, world.program.At(3).id);
  EXPECT_EQ(survey->device_bytes(), 2 * (64u << 20));
  EXPECT_TRUE(survey->AllIn(ProcessState::kRunning));
  EXPECT_FALSE(survey->AnySuspended());
}

TEST(SurveyTest, ARecordHoldsTheNeedsOfASuspendedProcess) {
  World world(1);
  world.program.At(1).state = ProcessState::kCheckpointed;
  ASSERT_TRUE(gpu_state::SaveSuspended(world.services.paths,
                                       {world.program.root(), {fakes::GpuB()}, 4096, 1}));
  auto survey = SurveyTarget(world.services, TargetOf(world));
  ASSERT_TRUE(survey);
  EXPECT_EQ(survey->device_bytes(/*suspended=*/true), 4096u);
  EXPECT_EQ(survey->device_processes[0].gpus, std::vector<device::GpuUuid>{fakes::GpuB()});
  EXPECT_TRUE(survey->AllSuspended());
}

TEST(SurveyTest, ImportedMemoryCountsIfTheDriverDoesNotCountIt) {
  for (bool counts : {false, true}) {
    World world(1);
    world.program.AddAgent(1, 1).imported = true;
    world.device->driver.counts_imported = counts;
    auto survey = SurveyTarget(world.services, TargetOf(world));
    ASSERT_TRUE(survey);
    EXPECT_EQ(survey->device_bytes(), (64u << 20) + (counts ? 0 : fakes::kPiece));
  }
}

struct Refusal {
  const char* name;
  std::function<Target(World&)> target;
  Code code;
  const char* message;
};

const Refusal kRefusals[] = {
    {"Ended",
     [](World& world) {
       world.program.Kill(1);
       return TargetOf(world);
     },
     Code::kNotFound, "zombie"},
    {"ReusedPid",
     [](World& world) {
       Target target = TargetOf(world);
       target.root.start_time -= 1;
       return target;
     },
     Code::kNotFound, "has ended"},
    {"Init",
     [](World&) {
       return Target{"1", "", process::ReadStat({1})->id};
     },
     Code::kUnimplemented, "init"},
    {"OneOfOurAncestors",
     [](World&) {
       return Target{"self", "", process::ReadStat({::getpid()})->id};
     },
     Code::kUnimplemented, "contains this command"},
    {"FailedGpuState",
     [](World& world) {
       world.program.At(2).state = ProcessState::kFailed;
       return TargetOf(world);
     },
     Code::kFailedPrecondition, "has failed"},
    {"Traced",
     [](World& world) {
       const pid_t pid = world.program.At(2).id.pid.value;
       EXPECT_EQ(::ptrace(PTRACE_SEIZE, pid, nullptr, nullptr), 0);
       return TargetOf(world);
     },
     Code::kUnimplemented, "is traced by process"},
};

class SurveyRefusalTest : public testing::TestWithParam<Refusal> {};

TEST_P(SurveyRefusalTest, IsRefused) {
  World world(2);
  const Error error = RefusalOf(world, GetParam().target(world));
  EXPECT_EQ(error.code, GetParam().code) << error.ToString();
  EXPECT_NE(error.ToString().find(GetParam().message), std::string::npos) << error.ToString();
}

INSTANTIATE_TEST_SUITE_P(All, SurveyRefusalTest, testing::ValuesIn(kRefusals),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(SurveyTest, WithAListRefusalsAreCollected) {
  World world(2);
  world.program.At(2).state = ProcessState::kFailed;
  std::vector<Refused> refused;
  auto survey = SurveyTarget(world.services, TargetOf(world), &refused);
  ASSERT_TRUE(survey);
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(refused[0].id, "gpu-failed");
}

TEST(SurveyTest, AChangeOfTheTreeIsNamed) {
  World world(2);
  auto survey = SurveyTarget(world.services, TargetOf(world));
  ASSERT_TRUE(survey);
  EXPECT_TRUE(CheckUnchanged(*survey));
  EXPECT_TRUE(CheckSameUsers(world.services, *survey));
  EXPECT_TRUE(CheckStillOwn(*survey));

  auto& added = world.program.AddProcess();
  Status started = CheckUnchanged(*survey);
  ASSERT_FALSE(started);
  EXPECT_TRUE(TreeHasChanged(started.error()));
  EXPECT_NE(started.error().message.find("was started"), std::string::npos);
  Status began = CheckSameUsers(world.services, *survey);
  ASSERT_FALSE(began);
  EXPECT_TRUE(TreeHasChanged(began.error()));
  added.uses_gpu = false;
  EXPECT_TRUE(CheckSameUsers(world.services, *survey)) << "other processes may start and end";

  world.program.Kill(2);
  Status ended = CheckSameUsers(world.services, *survey);
  ASSERT_FALSE(ended);
  EXPECT_TRUE(TreeHasChanged(ended.error()));
}

TEST(SurveyTest, AnErrorAboutAnEndedProcessIsATreeChangeWhileTheTargetLives) {
  World world(1);
  Error gone{Code::kNotFound, Domain::kProcess};
  EXPECT_TRUE(TreeHasChanged(AsTreeChange(TargetOf(world), gone)));
  EXPECT_FALSE(TreeHasChanged(AsTreeChange(TargetOf(world), Error{Code::kNotFound})));
  world.program.Kill(1);
  EXPECT_FALSE(TreeHasChanged(AsTreeChange(TargetOf(world), gone)));
}

TEST(SurveyTest, HoldersOfGpuFilesAreRefused) {
  World world(2);
  auto survey = SurveyTarget(world.services, TargetOf(world));
  ASSERT_TRUE(survey);
  EXPECT_TRUE(CheckOnlyDeviceUsers(world.services, *survey));
  world.device->other_holders = {{world.program.At(2).id, "python", {"fd 4 -> /dev/nvidia0"}}};
  Status refused = CheckOnlyDeviceUsers(world.services, *survey);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("(python) holds GPU files"), std::string::npos);
}

TEST(SurveyTest, GpuProcessesOutsideOfTheTreeAreNotInAnImage) {
  World world(2);
  auto survey = SurveyTarget(world.services, TargetOf(world));
  ASSERT_TRUE(survey);
  EXPECT_TRUE(CheckNothingOutside(*survey));
  // Move process 2 out of the tree.
  survey->outside.push_back(survey->tree.members.back());
  survey->tree.members.pop_back();
  Status refused = CheckNothingOutside(*survey);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("and uses a GPU"), std::string::npos);
  survey->device_processes.pop_back();
  EXPECT_TRUE(CheckNothingOutside(*survey)) << "of a process only GPU users count";
  survey->target.job = "job";
  EXPECT_FALSE(CheckNothingOutside(*survey)) << "of a job all count";
}

}  // namespace
}  // namespace stasis::checks
