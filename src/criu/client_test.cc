#include "criu/client.h"

#include <sys/file.h>

#include <algorithm>
#include <sstream>
#include <vector>

#include "criu/testing.h"

namespace stasis::criu {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace)

class Client : public WithCriu {};

TEST_F(Client, KnowsItsVersion) {
  auto version = MustSpawn().GetVersion(Soon());
  ASSERT_TRUE(IsOk(version));
  EXPECT_GE(*version, (Version{4, 1, 0})) << ToString(*version);
}

TEST_F(Client, DumpsKillsAndRestores) {
  Target target({"memory"});
  ASSERT_TRUE(IsOk(MustSpawn().Dump(target.Dump(), nullptr, Soon())) << target.Log());
  EXPECT_TRUE(WIFSIGNALED(target.Reap()));
  long before = target.Count();
  auto pid = MustSpawn().Restore(target.Restore(), nullptr, Soon());
  ASSERT_TRUE(IsOk(pid) << target.Log());
  EXPECT_EQ(*pid, target.pid());
  EXPECT_TRUE(target.Counts()) << target.State();
  EXPECT_GT(target.Count(), before);
}

TEST_F(Client, APreparedDumpStopsTheProgramOnlyInDump) {
  Target target({"memory", "threads"});
  Session session = MustSpawn();
  ASSERT_TRUE(IsOk(session.PrepareDump(target.Dump(), Soon()))) << target.Log();
  EXPECT_TRUE(target.Counts()) << target.State();
  std::vector<Moment> moments;
  auto note = [&](Notification& notification) -> Status {
    moments.push_back(notification.moment);
    return {};
  };
  ASSERT_TRUE(IsOk(session.Dump(target.Dump(), note, Soon()))) << target.Log();
  ASSERT_FALSE(moments.empty());
  EXPECT_EQ(moments.front(), Moment::kPreDump);
  EXPECT_EQ(std::count(moments.begin(), moments.end(), Moment::kPreDump), 1);
  EXPECT_TRUE(WIFSIGNALED(target.Reap()));
  ASSERT_TRUE(IsOk(MustSpawn().Restore(target.Restore(), nullptr, Soon()))) << target.Log();
  EXPECT_TRUE(target.Counts()) << target.State();
}

TEST_F(Client, APreparedDumpThatIsNotContinuedLeavesTheProgramRunning) {
  Target target({"memory"});
  Session session = MustSpawn();
  ASSERT_TRUE(IsOk(session.PrepareDump(target.Dump(), Soon()))) << target.Log();
  session.CancelPrepared();
  EXPECT_NE(::kill(session.criu_pid().value, 0), 0);
  EXPECT_TRUE(target.Counts()) << target.State();
}

TEST_F(Client, PreparingReportsThatCriuHasEnded) {
  Target target({"memory"});
  Session session = MustSpawn();
  ::kill(session.criu_pid().value, SIGKILL);
  const auto prepared = session.PrepareDump(target.Dump(), Soon());
  ASSERT_FALSE(prepared);
  EXPECT_NE(prepared.error().message.find("CRIU ended without an answer"), std::string::npos)
      << prepared.error().ToString();
  EXPECT_FALSE(prepared.error().not_undone);
  EXPECT_TRUE(target.Counts()) << target.State();
}

TEST_F(Client, ARejectedPostDumpLeavesTheProgramRunning) {
  Target target({"memory"});
  bool asked = false;
  auto refuse = [&](Notification& notification) -> Status {
    if (notification.moment != Moment::kPostDump) return {};
    asked = true;
    return Fail(Code::kResourceExhausted, "the disk is full");
  };
  auto dumped = MustSpawn().Dump(target.Dump(), refuse, Soon());
  ASSERT_FALSE(dumped);
  EXPECT_TRUE(asked);
  EXPECT_EQ(dumped.error().code, Code::kResourceExhausted);
  EXPECT_EQ(dumped.error().message, "the disk is full");
  EXPECT_TRUE(target.Counts()) << target.State();
}

TEST_F(Client, LeavesTheProgramRunningWhenAsked) {
  Target target({"memory"});
  DumpRequest request = target.Dump();
  request.leave_running = true;
  ASSERT_TRUE(IsOk(MustSpawn().Dump(request, nullptr, Soon())) << target.Log());
  EXPECT_TRUE(target.Counts()) << target.State();
}

// After a restore, the program has its own signal handling and limits, not those of CRIU or of this
// process.
TEST_F(Client, SignalsAndLimitsAreRestored) {
  auto look = [](process::HostPid pid) {
    std::string seen = ReadFile("/proc/" + process::ToString(pid) + "/limits").value_or("");
    std::istringstream lines(ReadFile("/proc/" + process::ToString(pid) + "/status").value_or(""));
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("Sig") && !line.starts_with("SigQ")) seen += line + "\n";
    }
    return seen;
  };
  Target target({"memory"});
  std::string before = look(target.pid());
  EXPECT_NE(before.find("SigIgn"), std::string::npos);
  ASSERT_TRUE(IsOk(MustSpawn().Dump(target.Dump(), nullptr, Soon()))) << target.Log();
  target.Reap();
  ASSERT_TRUE(IsOk(MustSpawn().Restore(target.Restore(), nullptr, Soon()))) << target.Log();
  EXPECT_EQ(look(target.pid()), before);
}

// Delays the dump while the program is stopped, as a disk that does not answer would.
Status Hold(const Session& session, Notification& notification) {
  if (notification.moment == Moment::kQueryExternalFiles) {
    ::kill(session.criu_pid().value, SIGSTOP);
  }
  return {};
}

TEST_F(Client, ADumpPastItsDeadlineIsRolledBack) {
  Target target({"memory", "children", "threads"});
  Session session = MustSpawn();
  auto dumped = session.Dump(
      target.Dump(), [&](Notification& n) { return Hold(session, n); },
      Deadline::In(std::chrono::milliseconds(300)));
  ASSERT_FALSE(dumped);
  EXPECT_EQ(dumped.error().code, Code::kDeadlineExceeded);
  EXPECT_FALSE(dumped.error().not_undone) << dumped.error().ToString();
  EXPECT_NE(dumped.error().message.find("has rolled back"), std::string::npos)
      << dumped.error().ToString();
  EXPECT_TRUE(target.Counts()) << target.State();
}

TEST_F(Client, ARestorePastItsDeadlineLeavesNothing) {
  Target target({"memory", "children"});
  ASSERT_TRUE(IsOk(MustSpawn().Dump(target.Dump(), nullptr, Soon()))) << target.Log();
  target.Reap();
  for (Moment moment : {Moment::kPreRestore, Moment::kPostRestore}) {
    Session session = MustSpawn();
    auto restored = session.Restore(
        target.Restore(),
        [&](Notification& n) -> Status {
          if (n.moment == moment) ::kill(session.criu_pid().value, SIGSTOP);
          return {};
        },
        Deadline::In(std::chrono::milliseconds(300)));
    ASSERT_FALSE(restored);
    EXPECT_EQ(restored.error().code, Code::kDeadlineExceeded);
    EXPECT_TRUE(Eventually([&] { return ::waitpid(-1, nullptr, WNOHANG) < 0; }));
    EXPECT_EQ(process::ReadTree({::getpid()})->members.size(), 1u);
  }
  // The image is still usable.
  ASSERT_TRUE(IsOk(MustSpawn().Restore(target.Restore(), nullptr, Soon()))) << target.Log();
  EXPECT_TRUE(target.Counts()) << target.State();
}

TEST_F(Client, ARejectedPostRestoreLeavesNothing) {
  Target target({"memory", "children"});
  ASSERT_TRUE(IsOk(MustSpawn().Dump(target.Dump(), nullptr, Soon()))) << target.Log();
  target.Reap();
  auto restored = MustSpawn().Restore(
      target.Restore(),
      [&](Notification& n) -> Status {
        if (n.moment != Moment::kPostRestore) return {};
        EXPECT_EQ(n.pid, target.pid());
        return Fail(Code::kAborted, "not today");
      },
      Soon());
  ASSERT_FALSE(restored);
  EXPECT_EQ(restored.error().message, "not today");
  EXPECT_TRUE(Eventually([&] { return ::waitpid(-1, nullptr, WNOHANG) < 0; }));
}

// The client of CRIU is killed with SIGKILL during a dump. CRIU then gets no answer, the program
// continues to run, and a lock that was passed to CRIU is released only when CRIU exits.
class KilledClient : public WithCriu, public ::testing::WithParamInterface<Moment> {};

TEST_P(KilledClient, LeavesTheProgramRunning) {
  Target target({"memory", "children", "threads"});
  std::string lock_path = target.directory() + "/lock";
  int ready[2];
  ASSERT_EQ(::pipe2(ready, O_CLOEXEC), 0);
  pid_t client = ::fork();
  ASSERT_GE(client, 0);
  if (client == 0) {
    auto lock = Open(lock_path, O_RDWR | O_CREAT);
    if (!lock || ::flock(lock->get(), LOCK_EX) != 0) ::_exit(1);
    Session session = MustSpawn({{10, lock->get()}});
    (void)session.Dump(
        target.Dump(),
        [&](Notification& n) -> Status {
          if (n.moment != GetParam()) return {};
          (void)!::write(ready[1], "x", 1);
          while (true) ::pause();
        },
        Soon());
    ::_exit(2);
  }
  char byte;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  ::close(ready[0]);
  ::close(ready[1]);
  auto lock = Open(lock_path, O_RDWR);
  EXPECT_NE(::flock(lock->get(), LOCK_EX | LOCK_NB), 0);
  ::kill(client, SIGKILL);
  ::waitpid(client, nullptr, 0);
  EXPECT_TRUE(Eventually([&] { return ::flock(lock->get(), LOCK_EX | LOCK_NB) == 0; }));
  EXPECT_TRUE(target.Counts()) << target.State();
  EXPECT_FALSE(PathExists(target.directory() + "/stats-dump"));  // written by a finished dump
}

INSTANTIATE_TEST_SUITE_P(At, KilledClient,
                         ::testing::Values(Moment::kPreDump, Moment::kQueryExternalFiles,
                                           Moment::kPostDump));

// While CRIU waits for the answer to post-dump, no code of CRIU is left in the program, so that
// even the death of CRIU is harmless.
TEST_F(Client, CriuKilledAtPostDumpLeavesTheProgramRunning) {
  Target target({"memory", "children", "threads"});
  Session session = MustSpawn();
  auto dumped = session.Dump(
      target.Dump(),
      [&](Notification& n) -> Status {
        if (n.moment == Moment::kPostDump) ::kill(session.criu_pid().value, SIGKILL);
        return {};
      },
      Soon());
  ASSERT_FALSE(dumped);
  EXPECT_EQ(dumped.error().domain, Domain::kCriu) << dumped.error().ToString();
  EXPECT_TRUE(target.Counts()) << target.State();
}

}  // namespace
}  // namespace stasis::criu
