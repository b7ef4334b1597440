#include "slurm/task.h"

#include <gmock/gmock.h>
#include <signal.h>

namespace stasis::slurm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Words = std::vector<std::string>;

std::string Joined(const Words& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

const std::string kFree = "arena free --keep-of-running";
const std::string kNotDumped =
    "note: the dump failed, so the program gets SIGTERM. Its state is lost unless it saves it "
    "itself";

// Records commands, and keeps the state of the job as the real ones would.
class FakeCommands : public Commands {
 public:
  void Note(const std::string& text) override { log.push_back("note: " + text); }
  int Run(const Words& args) override {
    const std::string line = Joined(args);
    log.push_back(line);
    for (const std::string& verb : failing) {
      if (args[0] == verb) return failing_code;
    }
    if (args[0] == "dump") state = "dumped";
    if (args[0] == "delete") state = "absent";
    if (args[0] == "kill" && args[1] == "--lost") state = "lost";
    return 0;
  }
  std::string Ask(const Words& args) override {
    if (args[0] == "suspend") return Run(args) == 0 ? "{}" : "";
    if (args[0] == "repo") {
      return R"({"repositories": [{"name": "open", "trusted": false},
                                  {"name": "fleet", "trusted": true}]})";
    }
    if (Joined(args) == "config show" && configured) {
      return R"({"settings": [{"key": "arena.reserve", "value": "auto"}]})";
    }
    if (Joined(args) == "config show") {
      return R"({"settings": [{"key": "arena.reserve", "value": "off"}, {"key": "x", "value": 1}]})";
    }
    if (args[0] == "checkpoints" && !has_image) return "";
    if (args[0] == "checkpoints" && deleted) {
      return R"({"checkpoints": [{"kind": "dump", "image": "/i/1", "exists": false}]})";
    }
    if (args[0] == "checkpoints") {
      return R"({"checkpoints": [{"kind": "suspend", "image": null, "exists": false},
                                 {"kind": "dump", "image": "/i/1", "exists": true},
                                 {"kind": "dump", "image": "/i/gone", "exists": false}]})";
    }
    if (state == "absent") return "";
    return R"({"state": ")" + state + R"(", "code": )" + code + "}";
  }
  Status StartAttached(const Words& args) override {
    log.push_back("attached: " + Joined(args));
    return {};
  }
  void KillAttached() override {
    log.emplace_back("killed");
    state = state_after_kill;
    if (failing_code == 7) failing.clear();  // the restore has ended
  }
  void StartBackground(const Words& args) override {
    log.push_back("beside: " + Joined(args));
    beside = true;
  }
  void StartReserve(const Words& args) override {
    log.push_back("reserve: " + Joined(args));
    reserves = true;
  }
  void StopReserve() override {
    if (reserves) log.emplace_back("reserve stopped");
    reserves = false;
  }
  void CancelBackground() override {
    if (beside) log.emplace_back("cancelled");
    beside = false;
  }

  Words log;
  Words failing;
  int failing_code = 1;
  bool has_image = true;
  bool deleted = false;  // all images
  bool beside = false;   // a dump beside the program is in progress
  bool reserves = false;
  bool configured = false;  // arena.reserve = "auto"
  std::string state = "absent", state_after_kill = "dumped", code = "null";
};

class TaskTest : public ::testing::Test {
 protected:
  TaskTest() { Make("", 0); }
  void Make(const std::string& user, int restarts) {
    TaskOptions options;
    options.job = "slurm-7.0.0";
    options.restarts = restarts;
    options.user = *ParseUserOptions(user);
    options.program = {"train", "--fast"};
    task_ = std::make_unique<Task>(std::move(options), commands_);
  }
  // The task's program runs, and the log is empty.
  void Running() {
    ASSERT_TRUE(task_->Begin({}));
    commands_.state = "running";
    commands_.log.clear();
  }

  FakeCommands commands_;
  std::unique_ptr<Task> task_;
};

TEST_F(TaskTest, FirstRunStartsTheProgram) {
  ASSERT_TRUE(task_->Begin({"LD_PRELOAD=x.so"}));
  EXPECT_THAT(commands_.log,
              ElementsAre("attached: run --attach --detach-keys none --job slurm-7.0.0 --env "
                          "LD_PRELOAD=x.so -- train --fast"));
  task_->OnAttachedEnd(3);
  EXPECT_EQ(task_->exit_code(), 3);
}

TEST_F(TaskTest, MemoryIsReadyWhileTheProgramRuns) {
  Make("reserve", 0);
  ASSERT_TRUE(task_->Begin({}));
  EXPECT_EQ(commands_.log.back(), "reserve: arena ready --wait slurm-7.0.0");
  commands_.state = "running";
  commands_.log.clear();
  task_->OnSignal(SIGTSTP);
  task_->OnSignal(SIGCONT);
  EXPECT_THAT(commands_.log,
              ElementsAre("reserve stopped", "suspend slurm-7.0.0", kFree, "resume slurm-7.0.0",
                          "reserve: arena ready --wait slurm-7.0.0"));
  commands_.log.clear();
  task_->OnSignal(SIGTERM);
  EXPECT_THAT(commands_.log,
              ElementsAre("reserve stopped", "suspend slurm-7.0.0", "dump slurm-7.0.0 --keep 2"));
}

TEST_F(TaskTest, MemoryStaysReadyIfASuspendFails) {
  Make("reserve", 0);
  Running();
  commands_.failing = {"suspend"};
  task_->OnSignal(SIGTSTP);
  EXPECT_THAT(commands_.log, ElementsAre("reserve stopped", "suspend slurm-7.0.0",
                                         "reserve: arena ready --wait slurm-7.0.0"));
}

TEST_F(TaskTest, TheConfigurationDecidesWhetherMemoryIsReady) {
  commands_.configured = true;
  ASSERT_TRUE(task_->Begin({}));
  EXPECT_TRUE(commands_.reserves);
  task_->OnAttachedEnd(3);
  EXPECT_FALSE(commands_.reserves);
  Make("reserve=off", 0);
  ASSERT_TRUE(task_->Begin({}));
  EXPECT_FALSE(commands_.reserves);
}

TEST_F(TaskTest, FirstRunIgnoresAJobOfAnEarlierCluster) {
  commands_.state = "dumped";
  ASSERT_TRUE(task_->Begin({}));
  EXPECT_THAT(
      commands_.log,
      ElementsAre("delete slurm-7.0.0",
                  "attached: run --attach --detach-keys none --job slurm-7.0.0 -- train --fast"));
}

TEST_F(TaskTest, RequeuedTaskIsRestored) {
  Make("", 1);
  commands_.state = "dumped";
  ASSERT_TRUE(task_->Begin({}));
  EXPECT_THAT(
      commands_.log,
      ElementsAre("attached: run --attach --detach-keys none --job slurm-7.0.0 --or-restore "
                  "--gpu-map auto -- train --fast"));
}

TEST_F(TaskTest, TaskOfANodeThatFailedIsRestored) {
  Make("", 1);
  commands_.state = "elsewhere";
  ASSERT_TRUE(task_->Begin({}));
  EXPECT_THAT(
      commands_.log,
      ElementsAre("kill --lost slurm-7.0.0",
                  "attached: run --attach --detach-keys none --job slurm-7.0.0 --or-restore "
                  "--gpu-map auto -- train --fast"));
}

TEST_F(TaskTest, RequeuedTaskWithoutAnImageSaysThatItStartsOver) {
  Make("", 1);
  commands_.state = "exited";
  commands_.has_image = false;
  ASSERT_TRUE(task_->Begin({}));
  EXPECT_THAT(commands_.log[0], HasSubstr("the task starts over"));
  EXPECT_THAT(commands_.log[1], HasSubstr("attached: run --attach --detach-keys none"));
}

TEST_F(TaskTest, TaskWhoseImagesWereDeletedIsNotSaidToStartOver) {
  Make("", 1);
  commands_.deleted = true;
  ASSERT_TRUE(task_->Begin({}));
  EXPECT_THAT(commands_.log[0], HasSubstr("attached: run --attach --detach-keys none"));
}

TEST_F(TaskTest, TaskThatHandledTermIsRestoredFromTheImageBefore) {
  Running();
  commands_.failing = {"dump"};
  task_->OnSignal(SIGTERM);
  commands_.log.clear();
  task_->OnAttachedEnd(0);
  EXPECT_THAT(commands_.log, ElementsAre(kFree));
  commands_.log.clear();
  Make("", 1);
  commands_.state = "exited";
  commands_.code = "0";
  ASSERT_TRUE(task_->Begin({"LD_PRELOAD=x.so"}));
  EXPECT_THAT(
      commands_.log,
      ElementsAre("attached: restore --attach --detach-keys none --gpu-map auto slurm-7.0.0"));
}

TEST_F(TaskTest, TermDumpsAndExitsWith75) {
  Running();
  task_->OnSignal(SIGCONT);  // as Slurm sends it before SIGTERM
  task_->OnSignal(SIGTERM);
  EXPECT_THAT(commands_.log, ElementsAre("suspend slurm-7.0.0", "dump slurm-7.0.0 --keep 2"));
  EXPECT_FALSE(task_->exit_code());
  task_->OnSignal(SIGTERM);
  task_->OnSignal(SIGUSR1);
  task_->OnAttachedEnd(75);
  EXPECT_EQ(task_->exit_code(), 75);
  EXPECT_THAT(commands_.log,
              ElementsAre("suspend slurm-7.0.0", "dump slurm-7.0.0 --keep 2", kFree));
}

TEST_F(TaskTest, ProgramThatCannotBeSuspendedIsDumped) {
  Running();
  commands_.failing = {"suspend"};
  task_->OnSignal(SIGTERM);
  task_->OnAttachedEnd(75);
  EXPECT_THAT(commands_.log,
              ElementsAre("suspend slurm-7.0.0", "dump slurm-7.0.0 --keep 2", kFree));
  EXPECT_EQ(task_->exit_code(), 75);
}

TEST_F(TaskTest, ImageMayGoToARepository) {
  Make("to=fleet,keep=5", 0);
  Running();
  task_->OnSignal(SIGTERM);
  EXPECT_THAT(commands_.log, ElementsAre("suspend slurm-7.0.0", "dump slurm-7.0.0 --to fleet"));
}

TEST_F(TaskTest, IsNotStartedIfItsRepositoryCannotBeUsed) {
  for (const char* name : {"open", "unknown"}) {
    Make(std::string("to=") + name, 0);
    const Status begun = task_->Begin({});
    ASSERT_FALSE(begun);
    EXPECT_THAT(begun.error().ToString(), HasSubstr("would not be restored after a requeue"));
  }
  EXPECT_THAT(commands_.log, IsEmpty());
  Make("to=fleet", 0);
  commands_.failing = {"repo"};
  const Status begun = task_->Begin({});
  ASSERT_FALSE(begun);
  EXPECT_THAT(begun.error().ToString(), HasSubstr("cannot be written to repository fleet"));
  EXPECT_THAT(commands_.log, ElementsAre("repo check fleet"));
  // A task that was dumped there is restored, whatever the state of the repository is.
  commands_.log.clear();
  Make("to=fleet", 1);
  EXPECT_TRUE(task_->Begin({}));
}

TEST_F(TaskTest, FailedDumpPassesTermOn) {
  Running();
  commands_.failing = {"dump"};
  task_->OnSignal(SIGTERM);
  EXPECT_THAT(commands_.log,
              ElementsAre("suspend slurm-7.0.0", "dump slurm-7.0.0 --keep 2", kNotDumped,
                          "resume slurm-7.0.0", "kill --only --signal 15 slurm-7.0.0"));
  EXPECT_TRUE(task_->dump_failed());
  // The second one is passed on at once.
  commands_.log.clear();
  task_->OnSignal(SIGTERM);
  EXPECT_THAT(commands_.log, ElementsAre("kill --only --signal 15 slurm-7.0.0"));
  task_->OnAttachedEnd(143);
  EXPECT_EQ(task_->exit_code(), 143);
}

TEST_F(TaskTest, SuspendAndResume) {
  Running();
  task_->OnSignal(SIGTSTP);
  task_->OnSignal(SIGTSTP);
  task_->OnSignal(SIGCONT);
  task_->OnSignal(SIGCONT);
  EXPECT_THAT(commands_.log, ElementsAre("suspend slurm-7.0.0", "resume slurm-7.0.0"));
}

TEST_F(TaskTest, SuspendedTaskIsDumpedWithoutAResume) {
  Running();
  task_->OnSignal(SIGTSTP);
  task_->OnSignal(SIGTERM);
  task_->OnSignal(SIGCONT);
  EXPECT_THAT(commands_.log, ElementsAre("suspend slurm-7.0.0", "dump slurm-7.0.0 --keep 2"));
}

TEST_F(TaskTest, SuspendedTaskThatCannotBeDumpedIsResumedToShutDown) {
  Running();
  task_->OnSignal(SIGTSTP);
  commands_.failing = {"dump"};
  commands_.log.clear();
  task_->OnSignal(SIGTERM);
  EXPECT_THAT(commands_.log,
              ElementsAre("dump slurm-7.0.0 --keep 2", kNotDumped, "resume slurm-7.0.0",
                          "kill --only --signal 15 slurm-7.0.0"));
}

TEST_F(TaskTest, FailedSuspendIsTriedAgain) {
  Running();
  commands_.failing = {"suspend"};
  task_->OnSignal(SIGTSTP);
  task_->OnSignal(SIGCONT);
  commands_.failing = {};
  task_->OnSignal(SIGTSTP);
  EXPECT_THAT(commands_.log, ElementsAre("suspend slurm-7.0.0", "suspend slurm-7.0.0"));
}

TEST_F(TaskTest, OtherSignalsArePassedOn) {
  Running();
  for (int signal : {SIGUSR1, SIGINT, SIGHUP}) task_->OnSignal(signal);
  EXPECT_THAT(commands_.log, ElementsAre("kill --only --signal 10 slurm-7.0.0",
                                         "kill --only --signal 2 slurm-7.0.0",
                                         "kill --only --signal 1 slurm-7.0.0"));
}

TEST_F(TaskTest, TermDuringARestoreLeavesTheImage) {
  Make("", 1);
  commands_.state = "starting";
  ASSERT_TRUE(task_->Begin({}));
  commands_.log.clear();
  task_->OnSignal(SIGTERM);
  EXPECT_THAT(commands_.log, ElementsAre("killed", "recover", kFree));
  EXPECT_EQ(task_->exit_code(), 75);
}

TEST_F(TaskTest, TermAtTheEndOfARestoreDumpsAgain) {
  Make("", 1);
  commands_.state = "starting";
  commands_.state_after_kill = "running";
  ASSERT_TRUE(task_->Begin({}));
  commands_.log.clear();
  task_->OnSignal(SIGTERM);
  EXPECT_THAT(commands_.log, ElementsAre("killed", "recover", "dump slurm-7.0.0 --keep 2", kFree));
  EXPECT_EQ(task_->exit_code(), 75);
}

TEST_F(TaskTest, DumpIsTriedAgainIfARestoreHasNotEnded) {
  for (int restarts : {0, 1}) {
    Make("", restarts);
    commands_.failing.clear();
    commands_.state = "dumped";
    Running();
    commands_.state_after_kill = "running";
    commands_.failing = {"suspend", "dump"};
    commands_.failing_code = 7;
    task_->OnSignal(SIGTERM);
    if (restarts == 0) {
      EXPECT_THAT(commands_.log, ElementsAre("suspend slurm-7.0.0", "dump slurm-7.0.0 --keep 2",
                                             kNotDumped, "kill --only --signal 15 slurm-7.0.0"));
      continue;
    }
    EXPECT_THAT(commands_.log,
                ElementsAre("suspend slurm-7.0.0", "dump slurm-7.0.0 --keep 2", "killed", "recover",
                            "dump slurm-7.0.0 --keep 2", kFree));
    EXPECT_EQ(task_->exit_code(), 75);
  }
}

TEST_F(TaskTest, TermDuringARestoreOfAnEndedJobIsNoSuccess) {
  Make("", 1);
  commands_.state = commands_.state_after_kill = "exited";
  commands_.code = "0";
  ASSERT_TRUE(task_->Begin({}));
  commands_.log.clear();
  task_->OnSignal(SIGTERM);
  EXPECT_THAT(commands_.log, ElementsAre("killed", "recover", kFree));
  EXPECT_EQ(task_->exit_code(), 75);
}

TEST_F(TaskTest, TermAsTheProgramFinishesKeepsItsCode) {
  Running();
  commands_.state = commands_.state_after_kill = "exited";
  commands_.code = "0";
  task_->OnSignal(SIGTERM);
  EXPECT_THAT(commands_.log,
              ElementsAre("killed", "recover", "image delete /i/1", "delete slurm-7.0.0", kFree));
  EXPECT_EQ(task_->exit_code(), 0);
}

TEST_F(TaskTest, FinishedTaskLeavesNoImage) {
  Running();
  commands_.state = "exited";
  commands_.code = "0";
  task_->OnAttachedEnd(0);
  EXPECT_THAT(commands_.log, ElementsAre("image delete /i/1", "delete slurm-7.0.0", kFree));
  EXPECT_EQ(task_->exit_code(), 0);
}

TEST_F(TaskTest, TheLastDumpRunsWithoutTheCommandThatReserves) {
  Make("reserve", 0);
  Running();
  task_->OnAttachedEnd(0);
  EXPECT_THAT(commands_.log, ElementsAre("reserve stopped", "dump slurm-7.0.0 --keep 2", kFree));
}

TEST_F(TaskTest, ProgramWhoseTerminalIsGoneIsDumped) {
  Running();
  task_->OnAttachedEnd(0);
  EXPECT_THAT(commands_.log, ElementsAre("dump slurm-7.0.0 --keep 2", kFree));
  EXPECT_EQ(task_->exit_code(), 75);
  Make("", 0);
  Running();
  commands_.failing = {"dump"};
  task_->OnAttachedEnd(0);
  EXPECT_EQ(task_->exit_code(), 1);
}

TEST_F(TaskTest, TermAfterTheProgramHasFailedGivesItsCode) {
  Running();
  commands_.state = commands_.state_after_kill = "exited";
  commands_.code = "3";
  task_->OnSignal(SIGTERM);
  EXPECT_THAT(commands_.log, ElementsAre("killed", "recover", kFree));
  EXPECT_EQ(task_->exit_code(), 3);
}

TEST_F(TaskTest, FailedTaskKeepsItsImages) {
  Running();
  task_->OnAttachedEnd(1);
  EXPECT_THAT(commands_.log, ElementsAre(kFree));
}

TEST_F(TaskTest, TimerDumpsTheRunningProgram) {
  Make("every=1m,keep=4", 0);
  Running();
  task_->OnTimer();
  EXPECT_THAT(commands_.log, ElementsAre("beside: dump --leave-running slurm-7.0.0 --keep 4"));
  commands_.log.clear();
  commands_.state = "starting";
  task_->OnTimer();
  EXPECT_THAT(commands_.log, IsEmpty());
  commands_.state = "running";
  task_->OnSignal(SIGTSTP);
  commands_.log.clear();
  task_->OnTimer();
  EXPECT_THAT(commands_.log, IsEmpty());
}

TEST_F(TaskTest, DumpInProgressIsCancelledFirst) {
  for (int event : {SIGTERM, SIGTSTP, 0}) {
    Make("every=1m", 0);
    Running();
    task_->OnTimer();
    commands_.log.clear();
    if (event == 0) {
      task_->OnAttachedEnd(0);
    } else {
      task_->OnSignal(event);
    }
    EXPECT_EQ(commands_.log[0], "cancelled") << event;
  }
}

TEST_F(TaskTest, DumpsTreatConnectionsAsTheTaskAsks) {
  for (const std::string how : {"keep", "close"}) {
    commands_ = {};
    Make("tcp=" + how + ",every=1h", 0);
    Running();
    task_->OnTimer();
    task_->OnSignal(SIGTERM);
    EXPECT_THAT(
        commands_.log,
        ElementsAre("beside: dump --leave-running slurm-7.0.0 --keep 2 --tcp " + how, "cancelled",
                    "suspend slurm-7.0.0", "dump slurm-7.0.0 --keep 2 --tcp " + how));
  }
}

TEST(UserOptions, EverySelection) {
  auto options = ParseUserOptions("every=30m,keep=3,to=fleet");
  ASSERT_TRUE(options);
  EXPECT_EQ(options->every_s, 1800);
  EXPECT_EQ(options->keep, 3);
  EXPECT_EQ(options->to, "fleet");
  EXPECT_EQ(ParseUserOptions("every=90")->every_s, 90);
  EXPECT_EQ(ParseUserOptions("every=2h")->every_s, 7200);
  EXPECT_EQ(ParseUserOptions("")->reserve, std::nullopt);
  EXPECT_EQ(ParseUserOptions("reserve,keep=1")->reserve, true);
  EXPECT_EQ(ParseUserOptions("reserve=off")->reserve, false);
  EXPECT_TRUE(ParseUserOptions("multinode")->multinode);
  EXPECT_EQ(ParseUserOptions("keep=4,tcp=keep")->tcp, "keep");
  EXPECT_EQ(ParseUserOptions("tcp=close")->tcp, "close");
  EXPECT_EQ(ParseUserOptions("")->tcp, "");
  EXPECT_EQ(ParseUserOptions("")->every_s, 0);
}

TEST(UserOptions, WrongWordsAreNamed) {
  for (const char* word :
       {"keep=0", "keep=", "keep=3x", "every=0", "every=5d", "to=", "often", "every=-1",
        "keep=99999999999999999999", "tcp=", "tcp=refuse", "tcp=keep=1"}) {
    auto options = ParseUserOptions(word);
    ASSERT_FALSE(options) << word;
    EXPECT_THAT(options.error().message, HasSubstr(word));
  }
}

TEST(TaskOptions, CommandLine) {
  auto options = ParseTaskOptions({"--job", "slurm-1.batch", "--restarts", "2", "--script",
                                   "--options", "keep=1", "--", "/job", "--", "x"});
  ASSERT_TRUE(options) << options.error().ToString();
  EXPECT_EQ(options->job, "slurm-1.batch");
  EXPECT_EQ(options->restarts, 2);
  EXPECT_TRUE(options->script);
  EXPECT_EQ(options->user.keep, 1);
  EXPECT_THAT(options->program, ElementsAre("/job", "--", "x"));
  EXPECT_EQ(options->pidns_socket, -1);
  options =
      ParseTaskOptions({"--job", "a", "--pidns", "5:99", "--options", "nopidns,keep=3", "--", "x"});
  ASSERT_TRUE(options) << options.error().ToString();
  EXPECT_EQ(options->pidns_socket, 5);
  EXPECT_EQ(options->pidns_init, 99);
  for (const Words& words :
       {Words{}, Words{"--job", "a"}, Words{"--job", "a", "--"}, Words{"--", "x"}, Words{"--job"},
        Words{"--nope", "1", "--", "x"}, Words{"--job", "a", "--restarts", "x", "--", "x"},
        Words{"--job", "a", "--pidns", "5", "--", "x"},
        Words{"--job", "a", "--pidns", "1:99", "--", "x"},
        Words{"--job", "a", "--pidns", "5:99x", "--", "x"}}) {
    EXPECT_FALSE(ParseTaskOptions(words)) << Joined(words);
  }
}

TEST(TaskOptions, ConnectionsAreKeptOnlyWithTheRight) {
  auto options = ParseTaskOptions({"--job", "slurm-1.0.0", "--options", "tcp=keep", "--", "x"});
  ASSERT_TRUE(options) << options.error().ToString();
  EXPECT_TRUE(CheckTcp(*options, /*has_network_right=*/true));
  const Status refused = CheckTcp(*options, /*has_network_right=*/false);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kPermissionDenied);
  EXPECT_THAT(refused.error().message, HasSubstr("slurm-1.0.0 would need CAP_NET_ADMIN"));
  EXPECT_THAT(refused.error().hint, HasSubstr("plugstack.conf"));
  for (const char* other : {"", "tcp=close"}) {
    options->user = *ParseUserOptions(other);
    EXPECT_TRUE(CheckTcp(*options, /*has_network_right=*/false)) << other;
  }
}

TEST(TaskOptions, StepsOverSeveralNodesAreRefused) {
  char other[] = "SLURM_NNODES=2", one[] = "SLURM_STEP_NUM_NODES=1",
       two[] = "SLURM_STEP_NUM_NODES=2";
  char* of_one[] = {other, one, nullptr};
  char* of_two[] = {other, two, nullptr};
  auto options = ParseTaskOptions({"--job", "slurm-1.0.0", "--default", "--", "x"});
  ASSERT_TRUE(options);
  EXPECT_TRUE(options->by_default);
  EXPECT_TRUE(CheckNodes(*options, of_one));
  const Status refused = CheckNodes(*options, of_two);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("slurm-1.0.0 runs on 2 nodes"));
  EXPECT_THAT(refused.error().hint, HasSubstr("--stasis=multinode"));
  options->user.multinode = true;
  EXPECT_TRUE(CheckNodes(*options, of_two));
  options = ParseTaskOptions({"--job", "slurm-1.batch", "--script", "--", "x"});
  ASSERT_TRUE(options);
  EXPECT_FALSE(options->by_default);
  EXPECT_TRUE(CheckNodes(*options, of_two));
}

}  // namespace
}  // namespace stasis::slurm
