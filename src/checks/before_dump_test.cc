#include "checks/before_dump.h"

#include <gtest/gtest.h>

#include "checks/other_jobs.h"
#include "gpu_state/testing/fake_criu.h"
#include "gpu_state/testing/world.h"
#include "jobs/store.h"

namespace stasis::checks {
namespace {

using fakes::World;

class BeforeDumpTest : public testing::Test {
 protected:
  Survey SurveyOf(World& world) {
    auto survey = SurveyTarget(world.services, {"target", "", world.program.root()});
    EXPECT_TRUE(survey) << survey.error().ToString();
    return *survey;
  }
  Result<DumpFacts> Check(World& world, std::vector<Refused>* refused = nullptr) {
    fakes::FakeCriu criu(world.program, world.log);
    return CheckBeforeDump(world.services, criu, SurveyOf(world), {}, false, refused);
  }
};

TEST_F(BeforeDumpTest, FindsCriuAndThePlanForStandardStreams) {
  World world(2);
  auto facts = Check(world);
  ASSERT_TRUE(facts) << facts.error().ToString();
  EXPECT_EQ(facts->criu_path, "criu");
  EXPECT_EQ(facts->criu_version, "4.1");
  EXPECT_FALSE(facts->in_own_pidns);
}

struct DumpCase {
  const char* id;
  void (*arrange)(World&);
};
const DumpCase kDumpCases[] = {
    {"privileges",
     [](World& world) { world.log.Set("criu CheckPrivileges", fakes::Fault::kFail); }},
    {"criu", [](World& world) { world.log.Set("criu Find", fakes::Fault::kFail); }},
    {"gpu-files",
     [](World& world) {
       world.device->other_holders = {{world.program.At(2).id, "child", {"fd 4 -> /dev/nvidia0"}}};
     }},
    {"gpu-driver", [](World& world) { world.device->no_checkpoint = true; }},
};

TEST_F(BeforeDumpTest, EachRefusalStopsADumpAndIsListedByItsId) {
  for (const DumpCase& c : kDumpCases) {
    World world(2);
    c.arrange(world);
    EXPECT_FALSE(Check(world)) << c.id;
    world.log.Clear();
    c.arrange(world);
    std::vector<Refused> refused;
    ASSERT_TRUE(Check(world, &refused)) << c.id;
    ASSERT_EQ(refused.size(), 1u) << c.id;
    EXPECT_EQ(refused[0].id, c.id);
  }
}

TEST_F(BeforeDumpTest, AllRefusalsAreListed) {
  World world(2);
  for (const DumpCase& c : kDumpCases) c.arrange(world);
  std::vector<Refused> refused;
  ASSERT_TRUE(Check(world, &refused));
  EXPECT_EQ(refused.size(), std::size(kDumpCases));
}

class OtherJobsTest : public testing::Test {
 protected:
  // Adds a job whose first process is process `number`.
  void AddJob(World& world, int number, const std::string& id) {
    jobs::NewJob job;
    job.id = id;
    job.argv = {"sleep"};
    job.cwd = "/";
    jobs::Processes processes;
    processes.root = world.program.At(number).id;
    processes.boot_id = *process::BootId();
    job.adopted = processes;
    auto claim = jobs::Store(world.services.paths.jobs()).Create(job);
    ASSERT_TRUE(claim) << claim.error().ToString();
  }
  std::vector<process::ProcessId> Members(World& world) {
    std::vector<process::ProcessId> members;
    for (const auto& process : world.program.processes()) members.push_back(process->id);
    return members;
  }
};

TEST_F(OtherJobsTest, AJobBelowTheTargetIsNamed) {
  World world(2);
  EXPECT_TRUE(CheckEndsNoOtherJob(world.services.paths, "", Members(world), false));
  ASSERT_NO_FATAL_FAILURE(AddJob(world, 2, "below"));
  Status refused = CheckEndsNoOtherJob(world.services.paths, "", Members(world), false);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kFailedPrecondition);
  EXPECT_NE(refused.error().message.find("job below"), std::string::npos);
  EXPECT_TRUE(CheckEndsNoOtherJob(world.services.paths, "below", Members(world), false))
      << "the job itself";
  EXPECT_TRUE(CheckEndsNoOtherJob(world.services.paths, "", Members(world), true))
      << "nothing is ended";
  EXPECT_TRUE(CheckEndsNoOtherJob(world.services.paths, "", {world.program.root()}, false))
      << "outside of the target";
}

}  // namespace
}  // namespace stasis::checks
