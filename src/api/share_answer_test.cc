#include "api/share_answer.h"

#include <gtest/gtest.h>

namespace stasis::api {
namespace {

constexpr uid_t kAlice = 4001;
constexpr uint64_t kGiB = uint64_t{1} << 30;

v1::ShareSurvey::Program Program(const std::string& job, pid_t root) {
  v1::ShareSurvey::Program program;
  program.set_job(job);
  program.set_class_("interactive");
  program.mutable_root()->set_pid(root);
  program.set_state("awake");
  return program;
}

void AddGpu(v1::ShareSurvey::Program& program, const std::string& uuid, uint64_t data,
            uint64_t contexts) {
  auto& gpu = *program.add_gpus();
  gpu.set_uuid(uuid);
  gpu.set_data_bytes(data);
  gpu.set_context_bytes(contexts);
}

// A machine with one GPU of 80 GiB. Processes above 999 belong to other users.
class ShareAnswerTest : public ::testing::Test {
 protected:
  ShareAnswerTest() {
    v1::ShareSurvey own;
    auto& gpu = *own.add_gpus();
    gpu.set_uuid("gpu0");
    gpu.set_total_bytes(80 * kGiB);
    own.set_host_free_bytes(100 * kGiB);
    answer_.AddMachine(own);
  }
  sharing::SurveyAnswer Add(const v1::ShareSurvey& survey) {
    answer_.AddPrograms("4001-a", kAlice, survey);
    return std::move(answer_).Take();
  }

  ShareAnswer answer_{[](const process::ProcessId& id, uid_t) { return id.pid.value < 1000; }};
};

TEST_F(ShareAnswerTest, AnHonestProgram) {
  v1::ShareSurvey survey;
  auto& program = *survey.add_programs() = Program("llama", 7);
  AddGpu(program, "gpu0", 40 * kGiB, kGiB);
  program.set_signal_file("/state/jobs/llama/share");
  program.add_processes()->set_pid(7);
  program.add_processes()->set_pid(8);
  const auto answer = Add(survey);
  const auto& facts = answer.survey.programs.at("4001-a/llama");
  ASSERT_TRUE(facts);
  EXPECT_EQ(facts->memory.at("gpu0").data, 40 * kGiB);
  EXPECT_EQ(facts->memory.at("gpu0").contexts, kGiB);
  EXPECT_EQ(facts->user, 4001u);
  EXPECT_EQ(facts->obstacle, "");
  EXPECT_EQ(answer.programs.at("4001-a/llama").processes.size(), 2u);
  EXPECT_EQ(answer.programs.at("4001-a/llama").signal_file, "/state/jobs/llama/share");
}

TEST_F(ShareAnswerTest, AProgramThatDoesNotAnswerIsWatchedForAnAnswer) {
  v1::ShareSurvey survey;
  auto& stopped = *survey.add_programs() = Program("stopped", 7);
  AddGpu(stopped, "gpu0", 40 * kGiB, kGiB);
  stopped.add_processes()->set_pid(7);
  auto& reserves = *survey.add_programs() = Program("reserves", 8);
  reserves.clear_class_();
  for (auto& program : *survey.mutable_programs()) {
    program.set_busy(true);
    program.set_silent(true);
  }
  const auto answer = Add(survey);
  EXPECT_FALSE(answer.survey.programs.at("4001-a/stopped")) << "what is known of it is old";
  EXPECT_EQ(answer.programs.at("4001-a/stopped").processes.size(), 1u);
  EXPECT_EQ(answer.survey.silent, (std::set<std::string>{"4001-a/reserves", "4001-a/stopped"}))
      << "also one that does not share delays surveys";
}

TEST_F(ShareAnswerTest, MemoryThatIsReadyForProgramsCountsAsFree) {
  v1::ShareSurvey survey;
  AddGpu(*survey.add_programs() = Program("llama", 7), "gpu0", 40 * kGiB, 0);
  auto& away = *survey.add_programs() = Program("away", 8);
  away.set_state("suspended");
  AddGpu(away, "gpu0", 8 * kGiB, 0);
  const auto ids = answer_.AddPrograms("4001-a", kAlice, survey);
  answer_.AddReady(ids, 30 * kGiB);
  answer_.AddReady({}, 30 * kGiB);
  EXPECT_EQ(ShareAnswer(answer_).Take().survey.host_free_bytes, 130 * kGiB);
  answer_.AddReady(ids, UINT64_MAX);
  EXPECT_EQ(std::move(answer_).Take().survey.host_free_bytes, 170 * kGiB)
      << "not more than the programs need";
}

TEST_F(ShareAnswerTest, SizesAreLimitedToTheGpu) {
  v1::ShareSurvey survey;
  AddGpu(*survey.add_programs() = Program("false", 7), "gpu0", uint64_t{1} << 62, UINT64_MAX);
  survey.set_spill_free_bytes(UINT64_MAX);
  const auto answer = Add(survey);
  const auto& memory = answer.survey.programs.at("4001-a/false")->memory.at("gpu0");
  EXPECT_EQ(memory.data, 80 * kGiB);
  EXPECT_EQ(memory.contexts, 0u);
  EXPECT_LE(answer.survey.spill_free_bytes, uint64_t{1} << 50);
}

TEST_F(ShareAnswerTest, AProgramOnAnUnknownGpuIsNotSuspended) {
  v1::ShareSurvey survey;
  AddGpu(*survey.add_programs() = Program("elsewhere", 7), "gpu9", kGiB, 0);
  const auto answer = Add(survey);
  const auto& facts = answer.survey.programs.at("4001-a/elsewhere");
  EXPECT_TRUE(facts->memory.empty());
  EXPECT_EQ(facts->obstacle, "the daemon does not see its GPU gpu9");
}

TEST_F(ShareAnswerTest, AProcessBelongsToOneProgramOfItsUser) {
  v1::ShareSurvey survey;
  *survey.add_programs() = Program("one", 7);
  *survey.add_programs() = Program("two", 7);
  *survey.add_programs() = Program("foreign", 1000);
  survey.mutable_programs(0)->add_processes()->set_pid(1001);
  const auto answer = Add(survey);
  EXPECT_EQ(answer.survey.programs.size(), 1u);
  EXPECT_TRUE(answer.programs.at("4001-a/one").processes.empty());
}

TEST_F(ShareAnswerTest, TheNumberOfProgramsIsLimited) {
  v1::ShareSurvey survey;
  for (int i = 0; i < 500; ++i) *survey.add_programs() = Program("p" + std::to_string(i), i + 1);
  EXPECT_EQ(Add(survey).survey.programs.size(), ShareAnswer::kMaxPrograms);
}

TEST_F(ShareAnswerTest, OnlyAFileOfTheJobIsWatched) {
  for (const char* path : {"/tmp/busy", "jobs/p/share", "/state/jobs/other/share"}) {
    v1::ShareSurvey survey;
    (*survey.add_programs() = Program("p", 7)).set_signal_file(path);
    ShareAnswer answer([](const auto&, uid_t) { return true; });
    answer.AddPrograms("k", kAlice, survey);
    EXPECT_EQ(std::move(answer).Take().programs.at("k/p").signal_file, "") << path;
  }
}

TEST_F(ShareAnswerTest, NothingIsKnownOfABusyProgram) {
  v1::ShareSurvey survey;
  (*survey.add_programs() = Program("p", 7)).set_busy(true);
  const auto answer = Add(survey);
  EXPECT_FALSE(answer.survey.programs.at("4001-a/p"));
}

}  // namespace
}  // namespace stasis::api
