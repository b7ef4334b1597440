#include "criu/stdio.h"

#include <pty.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "criu/preflight.h"
#include "criu/terminals.h"
#include "criu/testing.h"

namespace stasis::criu {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace)

constexpr int kOutput = 10, kMoreOutput = 11, kTerminal = 12;

struct Pipe {
  Pipe() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    read.Reset(ends[0]);
    write.Reset(ends[1]);
    ::fcntl(read.get(), F_SETFL, O_NONBLOCK);
  }
  UniqueFd read, write;
};

// Reads until `text` arrives.
bool Hears(int fd, const std::string& text) {
  std::string heard;
  return Eventually([&] {
    char buffer[4096];
    ssize_t size = ::read(fd, buffer, sizeof buffer);
    if (size > 0) heard.append(buffer, static_cast<size_t>(size));
    return heard.find(text) != std::string::npos;
  });
}

StdioPlan PlanOf(const Target& target, const FileId& log = {}) {
  auto tree = process::ReadTree(target.pid());
  EXPECT_TRUE(IsOk(tree));
  auto plan = PlanStdio(*tree, log);
  EXPECT_TRUE(IsOk(plan));
  return *plan;
}

void DumpAway(const Target& target, const StdioPlan& plan, bool leave_running = false) {
  DumpRequest dump = target.Dump();
  plan.ApplyTo(dump.options);
  dump.leave_running = leave_running;
  ASSERT_TRUE(IsOk(MustSpawn().Dump(dump, nullptr, Soon()))) << target.Log();
  ASSERT_TRUE(IsOk(DetachTerminals(dump.images_dir)));
  if (!leave_running) target.Reap();
}

// Restores with the descriptors in `fds`, by their numbers in CRIU, and those that the plan adds.
void Bring(const Target& target, const StdioPlan& plan, const Replacements& replacements,
           std::map<int, int> fds, std::vector<std::string>* notes = nullptr) {
  auto inherit = PlanInherit(plan.externals, replacements);
  ASSERT_TRUE(IsOk(inherit));
  for (const auto& [number, file] : inherit->files) fds[number] = file.get();
  RestoreRequest restore = target.Restore();
  restore.options.shell_job = plan.shell_job;
  restore.inherit = inherit->inherit;
  auto append_only = [&](Notification& notification) -> Status {
    if (notification.moment != Moment::kPostRestore || replacements.output.empty()) return {};
    STASIS_ASSIGN(auto tree, process::ReadTree(notification.pid));
    struct stat log;
    if (::fstat(fds.at(replacements.output.front()), &log) != 0) return FailErrno(errno, "fstat");
    return AppendOnly(tree, FileId::Of(log));
  };
  auto pid = MustSpawn(fds).Restore(restore, append_only, Soon());
  ASSERT_TRUE(IsOk(pid)) << target.Log();
  EXPECT_TRUE(target.Counts()) << target.State();
  if (notes != nullptr) *notes = inherit->notes;
}

class Stdio : public WithCriu {};

TEST_F(Stdio, OutputContinuesInANewPipe) {
  Pipe first, second, errors;
  Target target({"talk"}, {{1, first.write.get()}, {2, errors.write.get()}});
  EXPECT_TRUE(Hears(first.read.get(), "line 1\n"));
  StdioPlan plan = PlanOf(target);
  ASSERT_EQ(plan.externals.size(), 2u);
  EXPECT_EQ(plan.externals[0].kind, "pipe");
  EXPECT_EQ(plan.externals[0].fd, 1);
  EXPECT_EQ(plan.externals[0].direction, "out");
  EXPECT_FALSE(plan.shell_job);
  DumpAway(target, plan);
  first.read.Reset();  // the reader has closed its end
  first.write.Reset();
  Bring(target, plan, {.output = {kOutput, kMoreOutput}},
        {{kOutput, second.write.get()}, {kMoreOutput, errors.write.get()}});
  EXPECT_TRUE(Hears(second.read.get(), "line "));
}

TEST_F(Stdio, UnreadInputIsRestored) {
  Pipe input;
  ASSERT_EQ(::write(input.write.get(), "left", 4), 4);
  Target target({}, {{0, input.read.get()}});
  StdioPlan plan = PlanOf(target);
  ASSERT_EQ(plan.externals.size(), 1u);
  EXPECT_EQ(plan.externals[0].direction, "in");
  DumpAway(target, plan);
  input = {};
  Bring(target, plan, {}, {});
  // `theirs` is a duplicate of the program's restored input: it has the four bytes, then
  // end-of-file.
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, target.pid().value, 0)));
  UniqueFd theirs(static_cast<int>(::syscall(SYS_pidfd_getfd, pidfd.get(), 0, 0)));
  char text[8];
  EXPECT_EQ(::read(theirs.get(), text, sizeof text), 4);
  EXPECT_EQ(::read(theirs.get(), text, sizeof text), 0);
}

// A program whose log was opened as by a shell's `>`, without O_APPEND. CRIU rejects such a file if
// it has grown.
struct LoggingTarget {
  LoggingTarget() {
    char name[] = "/tmp/stasis-criu-log.XXXXXX";
    EXPECT_NE(::mkdtemp(name), nullptr);
    folder = name;
    path = folder + "/out.log";
    auto file = Open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    EXPECT_TRUE(IsOk(file));
    target = std::make_unique<Target>(std::vector<std::string>{"talk"},
                                      std::map<int, int>{{1, file->get()}, {2, file->get()}});
  }
  ~LoggingTarget() {
    target.reset();
    EXPECT_TRUE(RemoveTree(folder));
  }
  std::string folder, path;
  std::unique_ptr<Target> target;
};

TEST_F(Stdio, AGrownLogIsAppendedTo) {
  LoggingTarget logging;
  Target& target = *logging.target;
  StdioPlan plan = PlanOf(target);
  ASSERT_EQ(plan.externals.size(), 1u);
  EXPECT_EQ(plan.externals[0].kind, "file");
  EXPECT_EQ(plan.externals[0].path, logging.path);
  DumpAway(target, plan, /*leave_running=*/true);
  EXPECT_TRUE(target.Counts());  // and the log has grown
  target.Kill();
  auto grown = ReadFile(logging.path);
  Bring(target, plan, {}, {});
  auto after = ReadFile(logging.path);
  ASSERT_TRUE(IsOk(after));
  EXPECT_TRUE(after->starts_with(*grown));
  EXPECT_GT(after->size(), grown->size());
}

TEST_F(Stdio, AMissingLogIsCreatedWithANote) {
  LoggingTarget logging;
  Target& target = *logging.target;
  StdioPlan plan = PlanOf(target);
  DumpAway(target, plan);
  ASSERT_EQ(::unlink(logging.path.c_str()), 0);
  std::vector<std::string> notes;
  Bring(target, plan, {}, {}, &notes);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find(logging.path), std::string::npos);
  EXPECT_NE(ReadFile(logging.path).value_or("").find("line "), std::string::npos);
}

// A file with some content that later receives the output.
struct OtherLog {
  explicit OtherLog(const std::string& log_path) : path(log_path) {
    EXPECT_TRUE(WriteFileDurably(path, kBefore));
    auto opened = Open(path, O_WRONLY | O_APPEND);
    EXPECT_TRUE(IsOk(opened));
    file = std::move(*opened);
  }
  // Checks that the file has its old content, followed by whole lines of the program.
  void ExpectAddedTo() const {
    std::string text;
    EXPECT_TRUE(Eventually([&] {
      text = ReadFile(path).value_or("");
      return text.size() > kBefore.size();
    }));
    EXPECT_TRUE(text.starts_with(kBefore + "line ")) << text.substr(0, 200);
  }
  const std::string kBefore = "kept: " + std::string(1000, '.') + "\n";
  std::string path;
  UniqueFd file;
};

TEST_F(Stdio, TheJobsLogIsReplacedUnderAnyNameOrNumber) {
  LoggingTarget logging;
  Target& target = *logging.target;
  struct stat log;
  ASSERT_EQ(::stat(logging.path.c_str(), &log), 0);
  ASSERT_EQ(::rename(logging.path.c_str(), (logging.path + ".1").c_str()), 0);
  StdioPlan plan = PlanOf(target, FileId::Of(log));
  ASSERT_EQ(plan.externals.size(), 1u);
  EXPECT_EQ(plan.externals[0].kind, "log");
  DumpAway(target, plan, /*leave_running=*/true);
  target.Kill();
  ASSERT_EQ(::unlink((logging.path + ".1").c_str()), 0);
  OtherLog other(logging.folder + "/other");
  Bring(target, plan, {.output = {kOutput}}, {{kOutput, other.file.get()}});
  other.ExpectAddedTo();
  EXPECT_FALSE(PathExists(logging.path + ".1"));
}

TEST_F(Stdio, AFileThatReplacesAPipeIsAppendedTo) {
  Pipe first;
  Target target({"talk"}, {{1, first.write.get()}});
  StdioPlan plan = PlanOf(target);
  DumpAway(target, plan);
  OtherLog other(target.directory() + "/other");
  Bring(target, plan, {.output = {kOutput}}, {{kOutput, other.file.get()}});
  other.ExpectAddedTo();
}

TEST_F(Stdio, AStreamToAnotherProgramBecomesAPipe) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  UniqueFd ours(ends[0]), theirs(ends[1]);
  Target target({"talk"}, {{1, theirs.get()}});
  theirs.Reset();
  StdioPlan plan = PlanOf(target);
  ASSERT_EQ(plan.externals.size(), 1u);
  EXPECT_EQ(plan.externals[0].kind, "socket");
  auto tree = process::ReadTree(target.pid());
  EXPECT_TRUE(IsOk(Preflight(*tree, {}, plan)));
  DumpAway(target, plan);
  ours.Reset();
  Pipe output;
  Bring(target, plan, {.output = {kOutput}}, {{kOutput, output.write.get()}});
  EXPECT_TRUE(Hears(output.read.get(), "line "));
}

struct Terminal {
  Terminal() {
    int master_fd, slave_fd;
    EXPECT_EQ(::openpty(&master_fd, &slave_fd, nullptr, nullptr, nullptr), 0);
    master.Reset(master_fd);
    slave.Reset(slave_fd);
    ::fcntl(master_fd, F_SETFD, FD_CLOEXEC);
    ::fcntl(slave_fd, F_SETFD, FD_CLOEXEC);
    ::fcntl(master_fd, F_SETFL, O_NONBLOCK);
  }
  UniqueFd master, slave;
};

TEST_F(Stdio, AProgramOnATerminalIsRestoredOnAnother) {
  Terminal first, second;
  int tty = first.slave.get();
  Target target({"talk"}, {{0, tty}, {1, tty}, {2, tty}});
  EXPECT_TRUE(Hears(first.master.get(), "line 1\r\n"));
  StdioPlan plan = PlanOf(target);
  ASSERT_EQ(plan.externals.size(), 1u);
  EXPECT_EQ(plan.externals[0].kind, "tty");
  DumpAway(target, plan);
  first.slave.Reset();
  first.master.Reset();
  EXPECT_FALSE(PlanInherit(plan.externals, {.output = {kOutput}}));
  Bring(target, plan, {.terminal = {kTerminal}}, {{kTerminal, second.slave.get()}});
  EXPECT_TRUE(Hears(second.master.get(), "line "));
}

// A separate session for the shell: the session of this test may be led from outside of its pid
// namespace, which CRIU rejects.
TEST_F(Stdio, AProgramOfAShellIsAShellJob) {
  Target target({}, {}, /*new_session=*/false, {"setsid", "sh", "-c", "\"$@\"; exit 7", "sh"});
  ASSERT_NE(target.pid(), target.launcher());
  StdioPlan plan = PlanOf(target);
  EXPECT_TRUE(plan.shell_job);
  DumpAway(target, plan);
  Bring(target, plan, {}, {});
}

// The program is started from a shell, like most programs. The shell leads the session, whose
// controlling terminal is the program's terminal.
TEST_F(Stdio, AProgramOnAShellsTerminalIsRestoredOnAnother) {
  Terminal first, second;
  int tty = first.slave.get();
  Target target({"talk"}, {{0, tty}, {1, tty}, {2, tty}}, /*new_session=*/false,
                {"setsid", "-c", "sh", "-c", "\"$@\"; exit 7", "sh"});
  ASSERT_NE(target.pid(), target.launcher());
  EXPECT_TRUE(Hears(first.master.get(), "line 1\r\n"));
  StdioPlan plan = PlanOf(target);
  EXPECT_TRUE(plan.shell_job);
  DumpAway(target, plan);
  Bring(target, plan, {.terminal = {kTerminal}}, {{kTerminal, second.slave.get()}});
  EXPECT_TRUE(Hears(second.master.get(), "line "));
}

TEST_F(Stdio, APipeToTheOutsideGetsANote) {
  Pipe outside;
  Target target({"pipe"}, {{7, outside.write.get()}});
  outside.write.Reset();
  StdioPlan plan = PlanOf(target);
  EXPECT_TRUE(plan.externals.empty());
  ASSERT_EQ(plan.notes.size(), 1u);
  EXPECT_NE(plan.notes[0].find("(fd 7)"), std::string::npos) << plan.notes[0];
  DumpAway(target, plan);
  Bring(target, plan, {}, {});
}

TEST_F(Stdio, APipeWithinTheTreeIsNotExternal) {
  Target target({"pipe", "children"});
  EXPECT_TRUE(PlanOf(target).externals.empty());
}

}  // namespace
}  // namespace stasis::criu
