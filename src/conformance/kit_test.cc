#include "conformance/kit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace stasis::conformance {
namespace {

using ::testing::HasSubstr;

// Answers as an installation would on a machine where everything works.
class FakeCommands : public Commands {
 public:
  Ran Stasis(const std::vector<std::string>& arguments, std::chrono::milliseconds) override {
    std::string line;
    for (const std::string& word : arguments) line += (line.empty() ? "" : " ") + word;
    ran.push_back(line);
    for (const auto& [words, answer] : answers) {
      if (line.find(words) != std::string::npos) return answer;
    }
    return {0, "exited with code 0", R"({"pid": 7, "log": "/log", "shared_bytes": 100663296})", ""};
  }
  Ran Probe(const std::vector<std::string>& arguments, std::chrono::milliseconds) override {
    const std::string& name = arguments.back();
    if (auto found = facts.find(name); found != facts.end()) return found->second;
    return {0, "exited with code 0", name == "describe" ? "library /hip.so\n" : "true\n", ""};
  }
  std::string probe() const override { return "/probe"; }
  Status AwaitLines(const std::string&, const std::string&, int,
                    std::chrono::milliseconds) override {
    ++waits;
    if (waits == bad_wait) return Fail(Code::kDataLoss, "the program reports: FAILED: byte 3");
    return {};
  }
  void UseLibrary(const std::string& path) override { library = path; }
  Status CanOpen(const std::string& path) override {
    return path == unreadable ? Fail(Code::kPermissionDenied, "open " + path) : Status();
  }
  std::string CriuLog() override { return "criu says why"; }
  void Kill(int pid) override { killed.push_back(pid); }
  Status RemoveAll() override {
    removed = true;
    return {};
  }

  std::vector<std::pair<std::string, Ran>> answers = {
      {"gpu ls", {0, "", R"({"driver": {"kind": "amd"}})", ""}},
      {"check --full", {0, "", R"({"findings": []})", ""}},
  };
  std::map<std::string, Ran> facts;
  std::vector<std::string> ran;
  std::vector<int> killed;
  std::string library, unreadable;
  int waits = 0, bad_wait = 0;
  bool removed = false;
};

class KitTest : public ::testing::Test {
 protected:
  KitTest() {
    options_.machine = {{"amdgpu kernel driver", "6.10"}};
    options_.render_nodes = {"/dev/dri/renderD128"};
    options_.save = [this](const Report& report) -> Status {
      unfinished_.push_back(report.unfinished);
      return saved_;
    };
  }

  const Step& Of(const std::string& id) {
    for (const Step& step : report_.steps) {
      if (step.id == id) return step;
    }
    ADD_FAILURE() << "no step " << id;
    static const Step kNone;
    return kNone;
  }
  void Perform() {
    auto report = RunKit(options_, commands_);
    ASSERT_TRUE(report) << report.error().ToString();
    report_ = *report;
  }

  KitOptions options_;
  FakeCommands commands_;
  Report report_;
  std::vector<std::string> unfinished_;
  Status saved_;
};

TEST_F(KitTest, EverythingPassesAndNothingIsLeft) {
  Perform();
  EXPECT_TRUE(report_.passed());
  for (const Step& step : report_.steps) EXPECT_EQ(step.verdict, Verdict::kPassed) << step.id;
  EXPECT_EQ(commands_.library, "/hip.so");
  EXPECT_EQ(Of("suspend-1").message, "96 MiB left the GPU");
  EXPECT_TRUE(commands_.removed);
  EXPECT_EQ(report_.steps.back().id, "clean-up");
  // The file names the step that runs, so that a crash of the machine shows it.
  EXPECT_THAT(unfinished_, ::testing::Contains("suspend-1"));
  EXPECT_EQ(unfinished_.back(), "");
}

TEST_F(KitTest, AFailedStepIsReportedAndTheRunGoesOn) {
  commands_.answers.insert(
      commands_.answers.begin(),
      {"dump", {5, "exited with code 5", R"({"error": {"message": "no /dev/kfd"}})", "stderr"}});
  Perform();
  EXPECT_FALSE(report_.passed());
  EXPECT_EQ(Of("dump").verdict, Verdict::kFailed);
  EXPECT_EQ(Of("dump").message, "no /dev/kfd");
  EXPECT_THAT(Of("dump").log, HasSubstr("criu says why"));
  EXPECT_EQ(Of("restore").message, "needs the step dump");
  EXPECT_EQ(Of("end").verdict, Verdict::kPassed);
  EXPECT_EQ(Of("clean-up").verdict, Verdict::kPassed);
}

TEST_F(KitTest, LostContentsAreAFailure) {
  commands_.bad_wait = 3;  // after run and resume-1: resume-2
  Perform();
  EXPECT_EQ(Of("resume-1").verdict, Verdict::kPassed);
  EXPECT_EQ(Of("resume-2").verdict, Verdict::kFailed);
  EXPECT_THAT(Of("resume-2").message, HasSubstr("FAILED: byte 3"));
  EXPECT_EQ(Of("suspend-3").message, "needs the step resume-2");
}

TEST_F(KitTest, AMachineWithoutTheLibraryRunsTheOtherSteps) {
  commands_.facts["describe"] = {1, "exited with code 1", "FAILED: no libamdhip64\n", ""};
  commands_.unreadable = "/dev/kfd";
  options_.machine.clear();
  Perform();
  EXPECT_EQ(Of("hip-library").message, "FAILED: no libamdhip64");
  EXPECT_EQ(Of("kfd").verdict, Verdict::kFailed);
  EXPECT_EQ(Of("kernel-driver").message, "the kernel driver amdgpu is not loaded");
  EXPECT_EQ(Of("check").verdict, Verdict::kPassed);
  EXPECT_EQ(Of("run").verdict, Verdict::kSkipped);
  EXPECT_FALSE(report_.passed());
}

TEST_F(KitTest, FactsAreFalseOrCannotBeChecked) {
  commands_.facts["released"] = {77, "", "two processes could allocate it\n", ""};
  commands_.facts["synchronize"] = {-1, "was killed by signal 11", "", ""};
  Perform();
  EXPECT_EQ(Of("released").verdict, Verdict::kSkipped);
  EXPECT_EQ(Of("synchronize").verdict, Verdict::kFailed);
  EXPECT_EQ(Of("synchronize").message, "was killed by signal 11");
}

// It could make them fail.
TEST_F(KitTest, OtherProcessesOnTheGpusKeepTheirMemory) {
  commands_.answers[0].second.out =
      R"({"driver": {"kind": "amd"}, "processes": [{"pid": 5, "command": "train"}]})";
  commands_.facts["released"] = {1, "", "must not run", ""};
  Perform();
  EXPECT_EQ(Of("released").verdict, Verdict::kSkipped);
  EXPECT_THAT(Of("released").message, HasSubstr("other processes use the GPUs"));
  EXPECT_TRUE(report_.passed());
}

TEST_F(KitTest, ASoftwareGpuHasNoKernelDriver) {
  commands_.answers[0].second.out = R"({"driver": {"kind": "softgpu-hip"}})";
  options_.machine.clear();
  Perform();
  EXPECT_TRUE(report_.passed());
  EXPECT_EQ(Of("kernel-driver").verdict, Verdict::kSkipped);
  EXPECT_THAT(Of("stasis-gpus").message, HasSubstr("says nothing about AMD GPUs"));
}

TEST_F(KitTest, ADriverOfAnotherVendorIsAFailure) {
  commands_.answers[0].second.out = R"({"driver": {"kind": "nvidia"}})";
  Perform();
  EXPECT_EQ(Of("stasis-gpus").message, "the driver is nvidia, not HIP's");
}

TEST_F(KitTest, WithoutTimeTheRunFailsAndCleansUp) {
  options_.limit = std::chrono::seconds(0);
  Perform();
  EXPECT_FALSE(report_.passed());
  EXPECT_EQ(Of("dump").message, "no time was left");
  EXPECT_EQ(Of("clean-up").verdict, Verdict::kPassed);
}

TEST_F(KitTest, ACancelledRunFailsAndCleansUp) {
  options_.cancelled = [] { return true; };
  Perform();
  EXPECT_FALSE(report_.passed());
  EXPECT_EQ(Of("dump").message, "cancelled");
  EXPECT_EQ(Of("clean-up").verdict, Verdict::kPassed);
}

TEST_F(KitTest, ASuspendThatMovesLittleIsAFailure) {
  commands_.answers.push_back(
      {"suspend", {0, "exited with code 0", R"({"shared_bytes": 4096})", ""}});
  Perform();
  EXPECT_EQ(Of("suspend-1").verdict, Verdict::kFailed);
}

TEST_F(KitTest, AProgramThatDoesNotEndIsKilled) {
  commands_.answers.push_back({"wait", {-1, "did not end in 60 s and was killed", "", ""}});
  Perform();
  EXPECT_EQ(Of("end").verdict, Verdict::kFailed);
  EXPECT_EQ(commands_.killed, std::vector{7});
}

TEST_F(KitTest, ADocumentOfAnotherFormIsAFailureOrEmpty) {
  commands_.answers = {{"gpu ls", {0, "", R"([1])", ""}},
                       {"check", {0, "", "{\"findings\": 3}", ""}}};
  Perform();
  EXPECT_EQ(Of("stasis-gpus").verdict, Verdict::kFailed);
}

TEST_F(KitTest, AFileThatCannotBeWrittenIsAnErrorBeforeAnythingRuns) {
  saved_ = Fail(Code::kInternal, "disk full");
  ASSERT_FALSE(RunKit(options_, commands_));
  EXPECT_TRUE(commands_.ran.empty());
}

TEST_F(KitTest, AFullDiskIsAnErrorAfterTheCleanUp) {
  options_.done = [this](const Step&) { saved_ = Fail(Code::kInternal, "disk full"); };
  ASSERT_FALSE(RunKit(options_, commands_));
  EXPECT_TRUE(commands_.removed);
}

}  // namespace
}  // namespace stasis::conformance
