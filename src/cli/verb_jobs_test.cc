// The job commands as a user sees them, with the real command line and real jobs.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/install_layout.h"
#include "base/subprocess.h"
#include "jobs/store.h"

namespace stasis::cli {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Deadline Soon() { return Deadline::In(std::chrono::seconds(30)); }

// A running `stasis`.
class Running {
 public:
  Running(const std::string& state_dir, std::vector<std::string> args) {
    int out[2], err[2];
    EXPECT_EQ(::pipe2(out, O_CLOEXEC), 0);
    EXPECT_EQ(::pipe2(err, O_CLOEXEC), 0);
    UniqueFd out_write(out[1]), err_write(err[1]);
    out_.Reset(out[0]);
    err_.Reset(err[0]);
    SpawnOptions spawn;
    args.insert(args.begin(), *InstallRoot() + "/bin/stasis");
    spawn.argv = std::move(args);
    spawn.env = {"PATH=/usr/bin:/bin", "STASIS_STATE_DIR=" + state_dir};
    spawn.fds = {{1, out_write.get()}, {2, err_write.get()}};
    auto child = Subprocess::Spawn(spawn);
    EXPECT_TRUE(child) << child.error().ToString();
    child_ = std::move(*child);
  }
  // Reads stdout up to and including `text`.
  std::string ReadUntil(const std::string& text) {
    std::string got;
    char c;
    while (!got.ends_with(text)) {
      pollfd p{out_.get(), POLLIN, 0};
      if (::poll(&p, 1, 30000) != 1 || ::read(out_.get(), &c, 1) != 1) break;
      got += c;
    }
    EXPECT_TRUE(got.ends_with(text)) << got;
    return got;
  }
  void Signal(int signal) { child_.Kill(signal); }
  void CloseOutput() { out_.Reset(); }
  void CloseErrors() { err_.Reset(); }

  struct End {
    int code = -1;
    std::string out, err;
    json document() const { return json::parse(out); }
  };
  End Finish() {
    End end;
    end.out = ReadAll(out_);
    end.err = ReadAll(err_);
    auto status = child_.Wait(Soon());
    EXPECT_TRUE(status && WIFEXITED(*status)) << DescribeWaitStatus(status.value_or(-1));
    end.code = status ? WEXITSTATUS(*status) : -1;
    return end;
  }

 private:
  static std::string ReadAll(const UniqueFd& fd) {
    std::string text;
    char buffer[4096];
    for (ssize_t n; fd && (n = ::read(fd.get(), buffer, sizeof buffer)) > 0;) {
      text.append(buffer, static_cast<size_t>(n));
    }
    return text;
  }
  Subprocess child_;
  UniqueFd out_, err_;
};

class JobVerbs : public ::testing::Test {
 protected:
  JobVerbs() {
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    char name[] = "/tmp/stasis-cli-XXXXXX";
    dir_ = ::mkdtemp(name);
  }
  ~JobVerbs() override {
    json running = Stasis({"--json", "ps"}).document();
    for (const auto& job : running["jobs"]) {
      Stasis({"kill", job["id"], "-s", "KILL"});
    }
    while (::waitpid(-1, nullptr, 0) > 0) {  // shims
    }
    EXPECT_TRUE(RemoveTree(dir_));
  }
  Running Start(std::vector<std::string> args) { return Running(dir_, std::move(args)); }
  Running::End Stasis(std::vector<std::string> args) { return Start(std::move(args)).Finish(); }
  std::string Path(const std::string& name) const { return dir_ + "/" + name; }
  // Returns shell code that waits for a line in the named pipe.
  std::string Pause() {
    ::mkfifo(Path("go").c_str(), 0600);
    // The loop repeats a read that found end-of-file.
    return "until read x < " + Path("go") + "; do :; done";
  }
  void Go() {
    UniqueFd fd(::open(Path("go").c_str(), O_WRONLY | O_CLOEXEC));
    EXPECT_TRUE(WriteAll(fd.get(), "go\n"));
  }
  jobs::Store store() const { return jobs::Store(Path("data/jobs")); }

  std::string dir_;
};

TEST_F(JobVerbs, RunPrintsTheNameAndWaitEndsWithItsCode) {
  auto run = Stasis({"run", "--", "sh", "-c", "exit 3"});
  EXPECT_EQ(run.code, 0);
  EXPECT_EQ(run.err, "");
  std::string id = run.out.substr(0, run.out.size() - 1);
  EXPECT_TRUE(jobs::IsValidId(id)) << run.out;
  auto wait = Stasis({"wait", id});
  EXPECT_EQ(wait.code, 3);
  EXPECT_EQ(wait.out, id + " exited with code 3\n");
  EXPECT_EQ(Stasis({"delete", id}).code, 0);
  EXPECT_EQ(Stasis({"wait", id}).code, 3);  // not found
}

TEST_F(JobVerbs, RunAsJsonNamesProcessAndLog) {
  auto run = Stasis({"exec", "--jid", "a", "--json", "--no-agent", "--", "sh", "-c", Pause()});
  ASSERT_EQ(run.code, 0) << run.err;
  auto document = run.document();
  EXPECT_EQ(document["id"], "a");
  EXPECT_EQ(document["log"], Path("data/jobs/a/log"));
  pid_t pid = document["pid"];
  EXPECT_EQ(::kill(pid, 0), 0);
  Go();
  EXPECT_EQ(Stasis({"wait", "a"}).code, 0);
}

TEST_F(JobVerbs, ProgramThatIsNotThereIsNotFoundAndNoJobIsLeft) {
  auto run = Stasis({"run", "--job", "a", "--log", Path("log"), "--", "no-such-program"});
  EXPECT_EQ(run.code, 3);
  EXPECT_EQ(run.out, "");
  EXPECT_THAT(run.err, AllOf(HasSubstr("cannot run no-such-program"), HasSubstr("PATH")));
  EXPECT_FALSE(PathExists(Path("log")));
  EXPECT_FALSE(PathExists(Path("data/jobs/a")));
}

TEST_F(JobVerbs, WrongUsageSaysSo) {
  for (std::vector<std::string> args : {std::vector<std::string>{"run"},
                                        {"run", "--"},
                                        {"run", "--job", "7", "--", "true"},
                                        {"run", "--job", "../x", "--", "true"},
                                        {"run", "--nope", "--", "true"},
                                        {"wait"},
                                        {"ps", "--", "x"},
                                        {"logs"},
                                        {"kill", "a", "-s", "NOPE"},
                                        {"logs", "-f", "--json", "a"}}) {
    auto end = Stasis(args);
    EXPECT_EQ(end.code, 2) << ::testing::PrintToString(args) << end.err;
    EXPECT_THAT(end.err, StartsWith("stasis: "));
  }
}

TEST_F(JobVerbs, AttachedOutputIsTheProgramsAndSoIsTheCode) {
  auto end = Stasis({"run", "--attach", "--", "sh", "-c",
                     "i=0; while [ $i -lt 5000 ]; do echo line $i; i=$((i+1)); done; exit 42"});
  EXPECT_EQ(end.code, 42);
  std::string expected;
  for (int i = 0; i < 5000; ++i) expected += "line " + std::to_string(i) + "\n";
  EXPECT_TRUE(end.out == expected);
}

TEST_F(JobVerbs, ArgumentsReachTheProgramAsTheyWereTyped) {
  auto end = Stasis({"run", "--attach", "-q", "--", "printf", "<%s>", "[a,b]", "{}", "", "--", "-h",
                     "--json", "caf\xe9"});
  EXPECT_EQ(end.code, 0);
  EXPECT_EQ(end.out, "<[a,b]><{}><><--><-h><--json><caf\xe9>");
  EXPECT_EQ(end.err, "");
  auto ps = Stasis({"ps", "-a", "--json"});  // JSON even in this case
  EXPECT_EQ(ps.document()["jobs"][0]["command"][2], "[a,b]");
}

TEST_F(JobVerbs, OnlyWhatThisRunWroteIsShownOfALogThatWasThere) {
  ASSERT_TRUE(WriteFileDurably(Path("log"), "before\n"));
  auto end = Stasis({"run", "--attach", "--log", Path("log"), "--", "echo", "now"});
  EXPECT_EQ(end.out, "now\n");
  EXPECT_EQ(ReadFile(Path("log")).value_or(""), "before\nnow\n");
}

TEST_F(JobVerbs, SignalsArePassedOn) {
  struct Row {
    int signal;
    const char* name;
  };
  for (const Row& row : {Row{SIGINT, "INT"}, Row{SIGQUIT, "QUIT"}, Row{SIGTERM, "TERM"}}) {
    auto attached = Start({"run", "--attach", "--", "sh", "-c",
                           std::string("trap 'echo got; exit 5' ") + row.name + "; echo ready; " +
                               "while :; do " + Pause() + "; done"});
    attached.ReadUntil("ready\n");
    attached.Signal(row.signal);
    auto end = attached.Finish();
    EXPECT_TRUE(end.out.ends_with("got\n")) << row.name << end.out;
    EXPECT_EQ(end.code, 5) << row.name;
  }
}

TEST_F(JobVerbs, ProgramEndedByASignalIs128AndItsNumber) {
  auto attached = Start({"run", "--attach", "--", "sh", "-c", "echo ready; " + Pause()});
  attached.ReadUntil("ready\n");
  attached.Signal(SIGTERM);
  EXPECT_EQ(attached.Finish().code, 128 + SIGTERM);
}

TEST_F(JobVerbs, HangupDetachesAndSoDoesAnOutputThatNobodyReads) {
  auto attached = Start({"run", "--job", "a", "--attach", "--", "sh", "-c",
                         "echo ready; " + Pause() + "; echo more; " + Pause() + "; exit 6"});
  attached.ReadUntil("ready\n");
  attached.Signal(SIGHUP);
  auto end = attached.Finish();
  EXPECT_EQ(end.code, 0);
  EXPECT_THAT(end.err, HasSubstr("job a continues"));

  auto follower = Start({"logs", "-f", "a"});
  follower.ReadUntil("ready\n");
  follower.CloseOutput();
  Go();
  EXPECT_EQ(follower.Finish().code, 0);
  Go();
  EXPECT_EQ(Stasis({"wait", "a"}).code, 6);
  EXPECT_EQ(Stasis({"logs", "a"}).out, "ready\nmore\n");
}

TEST_F(JobVerbs, HangupOfATerminalThatTakesNoMoreWordsDetachesToo) {
  auto attached =
      Start({"run", "--job", "a", "--attach", "--", "sh", "-c", "echo ready; " + Pause()});
  attached.ReadUntil("ready\n");
  attached.CloseErrors();
  attached.Signal(SIGHUP);
  EXPECT_EQ(attached.Finish().code, 0);
  Go();
  EXPECT_EQ(Stasis({"wait", "a"}).code, 0);
}

TEST_F(JobVerbs, DumpedProgramIs75) {
  auto attached =
      Start({"run", "--job", "a", "--attach", "--", "sh", "-c", "echo ready; " + Pause()});
  attached.ReadUntil("ready\n");
  auto job = store().Load("a");
  ASSERT_TRUE(job && job->processes);
  ASSERT_TRUE(store().MarkDumped("a", job->processes->root, "/images/a"));
  ::kill(job->processes->root.pid.value, SIGKILL);
  auto end = attached.Finish();
  EXPECT_EQ(end.code, 75);
  EXPECT_THAT(end.err, HasSubstr("job a was dumped to /images/a"));
  auto wait = Stasis({"wait", "a"});
  EXPECT_EQ(wait.code, 75);
  EXPECT_EQ(wait.out, "a was dumped\n");
}

TEST_F(JobVerbs, FollowedLogEndsWithTheJob) {
  Stasis({"run", "--job", "a", "--", "sh", "-c", "echo one; " + Pause() + "; echo two >&2"});
  auto follower = Start({"logs", "-f", "a"});
  follower.ReadUntil("one\n");
  Go();
  auto end = follower.Finish();
  EXPECT_EQ(end.out, "two\n");
  EXPECT_EQ(end.code, 0);
  EXPECT_EQ(Stasis({"logs", "--json", "a"}).document()["text"], "one\ntwo\n");
}

TEST_F(JobVerbs, PsListsWhatRunsAndWithAllWhatHasEnded) {
  Stasis({"run", "--job", "over", "--", "sh", "-c", "exit 4"});
  Stasis({"wait", "over"});
  Stasis({"run", "--job", "here", "--", "sh", "-c", Pause()});
  ASSERT_TRUE(store().AddCheckpoint("here", {"/images/x", "x", 1, 5ull << 30, 1.5}));
  auto running = Stasis({"ps"});
  EXPECT_THAT(running.out, AllOf(HasSubstr("here"), HasSubstr("running"), HasSubstr("5.0 GiB")));
  EXPECT_THAT(running.out, ::testing::Not(HasSubstr("over")));
  auto all = Stasis({"ps", "-a", "--json"}).document()["jobs"];
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0]["id"], "here");
  EXPECT_EQ(all[0]["checkpoint"]["bytes"], 5ull << 30);
  EXPECT_EQ(all[1]["state"], "exited");
  EXPECT_EQ(all[1]["code"], 4);
  EXPECT_EQ(all[1]["pid"], nullptr);
}

TEST_F(JobVerbs, DamagedRecordDoesNotHideTheOthers) {
  for (const char* id : {"bad", "good"}) {
    Stasis({"run", "--job", id, "--", "true"});
    Stasis({"wait", id});
  }
  ASSERT_TRUE(WriteFileDurably(Path("data/jobs/bad/exit.json"), "{"));
  auto ps = Stasis({"ps", "-a"});
  EXPECT_EQ(ps.code, 0);
  EXPECT_THAT(ps.out, HasSubstr("good"));
  EXPECT_THAT(ps.err, AllOf(HasSubstr("read job bad: "), HasSubstr("the record is damaged")));
  EXPECT_EQ(Stasis({"delete", "bad"}).code, 0);
}

TEST_F(JobVerbs, InspectSaysAllThatIsKnown) {
  Stasis({"run", "--job", "a", "--no-agent", "--", "sh", "-c", Pause() + "; exit 4", "it's"});
  auto inspect = Stasis({"inspect", "a", "--json"});
  ASSERT_EQ(inspect.code, 0) << inspect.err;
  auto document = inspect.document();
  EXPECT_EQ(document["state"], "running");
  EXPECT_EQ(document["uid"], ::getuid());
  EXPECT_EQ(document["gid"], ::getgid());
  EXPECT_EQ(document["directory"], std::filesystem::current_path().string());
  EXPECT_EQ(document["processes"]["root"]["pid"], document["pid"]);
  EXPECT_FALSE(document["processes"]["boot_id"].get<std::string>().empty());
  EXPECT_EQ(document["images"], 0);
  EXPECT_EQ(document["agent_library"], nullptr);
  EXPECT_THAT(Stasis({"inspect", "a"}).out,
              AllOf(HasSubstr("'it'\\''s'"), HasSubstr("checkpoints  none\n")));
  Go();
  EXPECT_EQ(Stasis({"wait", "a"}).code, 4);
  EXPECT_THAT(Stasis({"inspect", "a"}).out,
              AllOf(HasSubstr("exited 4"), HasSubstr(" (ended)"), HasSubstr("ago)")));
  EXPECT_EQ(Stasis({"inspect", "a", "--json"}).document()["code"], 4);
  EXPECT_EQ(Stasis({"inspect", "nobody"}).code, 3);
  EXPECT_EQ(Stasis({"inspect"}).code, 2);
}

TEST_F(JobVerbs, InspectPrintsOneLineForEachFact) {
  Stasis({"run", "--job", "a", "--no-agent", "--", "true", "x\nstate        dumped", "\x1b[2J",
          "it's\t"});
  Stasis({"wait", "a"});
  const std::string out = Stasis({"inspect", "a"}).out;
  EXPECT_THAT(out,
              HasSubstr("command      true $'x\\nstate        dumped' $'\\x1b[2J' $'it\\'s\\t'\n"));
  EXPECT_EQ(out.find("\nstate        dumped"), std::string::npos);
}

TEST_F(JobVerbs, CheckpointsAreListedWithTheirAccounts) {
  Stasis({"run", "--job", "a", "--", "true"});
  Stasis({"wait", "a"});
  jobs::Checkpoint suspend;
  suspend.kind = jobs::CheckpointKind::kSuspend;
  suspend.bytes = 3 << 20;
  suspend.written_bytes = 1 << 20;
  suspend.account = R"({"total_s": 0.25})";
  ASSERT_TRUE(store().AddCheckpoint("a", suspend));
  ASSERT_TRUE(store().AddCheckpoint("a", {"/no/image", "image", 1, 5 << 20, 2}));
  auto listed = Stasis({"checkpoints", "a"});
  EXPECT_EQ(listed.code, 0) << listed.err;
  EXPECT_THAT(listed.out, AllOf(HasSubstr("suspend"), HasSubstr("1.0 MiB"), HasSubstr("5.0 MiB"),
                                HasSubstr("/no/image (gone)")));
  auto rows = Stasis({"checkpoints", "a", "--json"}).document()["checkpoints"];
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0]["kind"], "suspend");
  EXPECT_EQ(rows[0]["image"], nullptr);
  EXPECT_EQ(rows[0]["written_bytes"], 1 << 20);
  EXPECT_EQ(rows[0]["account"]["total_s"], 0.25);
  EXPECT_EQ(rows[1]["kind"], "dump");
  EXPECT_EQ(rows[1]["image"], "/no/image");
  EXPECT_EQ(rows[1]["exists"], false);
  EXPECT_EQ(rows[1]["written_bytes"], nullptr);
  EXPECT_EQ(rows[1]["account"], nullptr);
  EXPECT_EQ(Stasis({"checkpoints", "nobody"}).code, 3);
}

TEST_F(JobVerbs, DatabaseThatCannotBeUsedIsNamedAndLeftAsItIs) {
  Stasis({"run", "--job", "a", "--", "true"});
  Stasis({"wait", "a"});
  const std::string path = Path("data/jobs/.jobs.db");
  const std::string good = *ReadFile(path);
  std::string later = good;
  later[63] = 7;  // the low byte of the version in SQLite's header
  struct Row {
    std::string bytes;
    int code;
    const char* words;
  };
  for (const Row& row : {Row{"", 1, "is damaged"}, Row{std::string(9000, 'x'), 1, "is damaged"},
                         Row{later, 5, "a later version of Stasis wrote"}}) {
    ASSERT_TRUE(ReplaceFile(path, row.bytes));
    for (std::vector<std::string> args : {std::vector<std::string>{"ps"},
                                          {"run", "--", "true"},
                                          {"inspect", "a"},
                                          {"checkpoints", "a"},
                                          {"delete", "a"},
                                          {"wait", "a"}}) {
      auto end = Stasis(args);
      EXPECT_EQ(end.code, row.code) << args[0] << end.err;
      EXPECT_THAT(end.err, AllOf(HasSubstr(path), HasSubstr(row.words)));
    }
    EXPECT_TRUE(*ReadFile(path) == row.bytes);
  }
  // Follow the advice of the error. The new database lists no job.
  ASSERT_EQ(::rename(path.c_str(), Path("away").c_str()), 0);
  EXPECT_EQ(Stasis({"ps"}).code, 0);
  ASSERT_TRUE(ReplaceFile(path, good));
  EXPECT_EQ(Stasis({"delete", "a"}).code, 0);
}

TEST_F(JobVerbs, KillReachesTheWholeTreeAndWhatLeftIt) {
  ::mkfifo(Path("ready").c_str(), 0600);
  auto run = Stasis({"--json", "run", "--job", "a", "--", "sh", "-c",
                     "trap '' TERM; sleep 1000 & (setsid sh -c 'echo > " + Path("ready") +
                         "; exec sleep 1000' &); wait"});
  ASSERT_EQ(run.code, 0);
  EXPECT_TRUE(ReadFile(Path("ready")));
  EXPECT_EQ(Stasis({"delete", "a"}).code, 7);
  auto kill = Stasis({"--json", "kill", "a", "--signal", "SIGKILL"});
  EXPECT_EQ(kill.code, 0) << kill.err;
  EXPECT_GE(kill.document()["processes"], 3);
  EXPECT_EQ(Stasis({"wait", "a"}).code, 128 + SIGKILL);
  auto again = Stasis({"kill", "a"});
  EXPECT_EQ(again.code, 7);
  EXPECT_EQ(Stasis({"delete", "a"}).code, 0);
  EXPECT_EQ(Stasis({"kill", "a"}).code, 3);
}

TEST_F(JobVerbs, KilledCommandLineDoesNotTakeTheJobWithIt) {
  auto attached = Start(
      {"run", "--job", "a", "--attach", "--", "sh", "-c", "echo ready; " + Pause() + "; exit 8"});
  attached.ReadUntil("ready\n");
  attached.Signal(SIGKILL);
  Go();
  EXPECT_EQ(Stasis({"wait", "a"}).code, 8);
}

}  // namespace
}  // namespace stasis::cli
