#include "ipc/pidns_init.h"

#include <gmock/gmock.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <thread>

#include "base/file.h"
#include "ipc/packet.h"
#include "ipc/socket.h"
#include "process/namespace.h"
#include "process/proc.h"

namespace stasis::ipc {
namespace {

using ::testing::HasSubstr;

// Runs ServePidns in the init process of a new pid namespace, as Slurm's plugin does.
class PidnsInitTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "creating a pid namespace needs root";
    auto pair = MakeSocketPair();
    ASSERT_TRUE(pair);
    init_ = static_cast<pid_t>(
        ::syscall(SYS_clone, CLONE_NEWPID | CLONE_NEWNS | SIGCHLD, nullptr, nullptr, nullptr, 0));
    ASSERT_GE(init_, 0);
    if (init_ == 0) {
      pair->ours.Reset();
      if (::mount(nullptr, "/", nullptr, MS_SLAVE | MS_REC, nullptr) != 0 ||
          ::mount("proc", "/proc", "proc", 0, nullptr) != 0) {
        ::_exit(1);
      }
      ::_exit(ServePidns(pair->theirs.get()) ? 0 : 1);
    }
    pair->theirs.Reset();
    char ready = 0;
    ASSERT_EQ(::recv(pair->ours.get(), &ready, 1, 0), 1);
    socket_ = pair->ours.get();
    auto number = process::ReadNamespace({init_}, "pid");
    ASSERT_TRUE(number);
    client_.emplace(std::move(pair->ours), *number);
  }
  void TearDown() override {
    if (init_ <= 0) return;
    client_.reset();
    int status = -1;
    ASSERT_EQ(::waitpid(init_, &status, 0), init_);
    EXPECT_EQ(status, 0) << "the end of the last client ends the init process";
  }

  // Runs a shell line with its output on the returned pipe.
  Result<std::string> Run(const std::string& line, pid_t pid = 0) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return FailErrno(errno, "pipe");
    UniqueFd read(ends[0]), write(ends[1]);
    SpawnOptions options;
    options.argv = {"/bin/sh", "-c", line};
    options.env = {{"COLOR=red", "PATH=/usr/bin:/bin"}};
    options.working_directory = "/usr";
    options.fds = {{1, write.get()}, {7, write.get()}};
    options.ignored_signals = {SIGXFSZ};
    options.new_session = true;
    STASIS_TRY(client_->Spawn(options, pid));
    write.Reset();
    std::string text;
    std::array<char, 256> buffer;
    for (ssize_t got; (got = ::read(read.get(), buffer.data(), buffer.size())) > 0;) {
      text.append(buffer.data(), static_cast<size_t>(got));
    }
    return text;
  }

  pid_t init_ = 0;
  int socket_ = -1;
  std::optional<PidnsInit> client_;
};

TEST_F(PidnsInitTest, AProcessGetsItsPidEnvironmentFolderAndDescriptors) {
  auto text = Run("echo $$ $PPID $COLOR; pwd; ls -m /proc/self/fd; echo seven >&7", 4711);
  ASSERT_TRUE(text) << text.error().ToString();
  // The fourth descriptor is that of ls itself.
  EXPECT_EQ(*text, "4711 1 red\n/usr\n0, 1, 2, 3, 7\nseven\n");
  text =
      Run("grep -c '^SigIgn:.*1000000$' /proc/$$/status; cut -d' ' -f6 /proc/$$/stat; echo $$", 90);
  EXPECT_EQ(text.value_or(""), "1\n90\n90\n") << "SIGXFSZ is ignored, and the session is new";
}

TEST_F(PidnsInitTest, ManyLongArgumentsArrive) {
  SpawnOptions options;
  const std::string word(60'000, 'x');
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  UniqueFd read(ends[0]), write(ends[1]);
  options.argv = {"/bin/sh", "-c", "echo ${#1} ${#9} $#", "sh"};
  for (int i = 0; i < 9; ++i) options.argv.push_back(word);
  options.fds = {{1, write.get()}};
  ASSERT_TRUE(client_->Spawn(options, 0));
  char text[32] = {};
  EXPECT_GT(::read(read.get(), text, sizeof text - 1), 0);
  EXPECT_STREQ(text, "60000 60000 9\n");
}

TEST_F(PidnsInitTest, AProgramThatDoesNotExistIsAnError) {
  SpawnOptions options;
  options.argv = {"/no/such/program"};
  const Status started = client_->Spawn(options, 0);
  ASSERT_FALSE(started);
  EXPECT_EQ(started.error().raw, ENOENT);
  EXPECT_THAT(started.error().ToString(), HasSubstr("/no/such/program"));
  EXPECT_TRUE(Run("true"));
}

TEST_F(PidnsInitTest, ChildrenAndOrphansAreReaped) {
  ASSERT_TRUE(Run("sh -c true & sh -c 'sh -c true & exec true' & exec true"));
  for (;;) {  // the test's time limit ends this loop
    auto text = Run("cat /proc/[0-9]*/stat 2>/dev/null");
    ASSERT_TRUE(text);
    if (text->find(" Z ") == std::string::npos) break;
  }
}

TEST_F(PidnsInitTest, MalformedRequestsAreIgnored) {
  UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  std::string text(1048, '\x01');  // the size of a request
  text.replace(0, 8, std::string("PDNS\x01\0\0\0", 8));
  std::vector<int> fds(5, null.get());
  for (size_t size : {size_t{1}, size_t{4}, size_t{60}, text.size()}) {
    ASSERT_TRUE(SendPacket(socket_, text.data(), size));
    ASSERT_TRUE(SendPacket(socket_, text.data(), size, fds));
  }
  EXPECT_EQ(Run("echo here").value_or(""), "here\n");
}

// What Spawn sends, without the end of the reply's socket that the client had.
struct Captured {
  std::string bytes = std::string(4096, '\0');
  Packet packet;
};

Captured Capture(const SpawnOptions& options, std::string_view reply = {}) {
  Captured captured;
  auto pair = MakeSocketPair();
  EXPECT_TRUE(pair);
  std::thread peer([&captured, &reply, socket = std::move(pair->theirs)] {
    auto got = ReceivePacket(socket.get(), captured.bytes.data(), captured.bytes.size());
    ASSERT_TRUE(got);
    captured.packet = std::move(*got);
    captured.bytes.resize(captured.packet.size);
    ASSERT_TRUE(SendPacket(captured.packet.fds[0].get(), reply.data(), reply.size()));
  });
  const Status answered = PidnsInit(std::move(pair->ours), 1).Spawn(options, 0);
  EXPECT_FALSE(answered);
  if (!reply.empty()) {
    EXPECT_THAT(answered.error().ToString(), HasSubstr("another version of Stasis"));
  }
  peer.join();
  return captured;
}

std::vector<int> Descriptors(const Captured& captured) {
  std::vector<int> fds;
  for (const UniqueFd& fd : captured.packet.fds) fds.push_back(fd.get());
  return fds;
}

TEST_F(PidnsInitTest, ARequestWhoseClientHasGoneIsDropped) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  UniqueFd read(ends[0]), write(ends[1]);
  SpawnOptions options;
  options.argv = {"/bin/sh", "-c", "echo started"};
  options.fds = {{1, write.get()}};
  {
    const Captured captured = Capture(options);
    ASSERT_TRUE(
        SendPacket(socket_, captured.bytes.data(), captured.bytes.size(), Descriptors(captured)));
  }
  write.Reset();
  char text[32] = {};
  EXPECT_EQ(::read(read.get(), text, sizeof text - 1), 0) << text;
}

TEST_F(PidnsInitTest, AnotherVersionIsAnError) {
  const std::string head("PDNS\x09\0\0\0", 8);
  (void)Capture({.argv = {"/bin/true"}}, head);
  auto pair = MakeSocketPair();
  ASSERT_TRUE(pair);
  ASSERT_TRUE(SendPacket(socket_, head.data(), head.size(), std::vector<int>{pair->theirs.get()}));
  pair->theirs.Reset();
  char reply[64] = {};
  EXPECT_GT(::recv(pair->ours.get(), reply, sizeof reply, 0), 8) << "there is no reply";
  EXPECT_EQ(std::string(reply, 4), "PDNS");
}

TEST_F(PidnsInitTest, AnErrorDoesNotEndTheInitProcess) {
  ASSERT_TRUE(SendPacket(socket_, "", 0));  // looks like the end-of-file
  auto pidfd = process::OpenPidfd({{init_}, process::ReadStat({init_})->id.start_time});
  ASSERT_TRUE(pidfd);
  rlimit before{};
  ASSERT_EQ(::prlimit(init_, RLIMIT_NOFILE, nullptr, &before), 0);
  // poll(2) refuses more descriptors than this.
  const rlimit one{1, before.rlim_max};
  ASSERT_EQ(::prlimit(init_, RLIMIT_NOFILE, &one, nullptr), 0);
  ASSERT_EQ(::kill(init_, SIGCHLD), 0);
  pollfd ended{pidfd->get(), POLLIN, 0};
  EXPECT_EQ(::poll(&ended, 1, 300), 0) << "the init process has ended";
  ASSERT_EQ(::prlimit(init_, RLIMIT_NOFILE, &before, nullptr), 0);
  EXPECT_EQ(Run("echo here").value_or(""), "here\n");
}

TEST_F(PidnsInitTest, TheEndOfTheInitProcessIsAnError) {
  ASSERT_EQ(::kill(init_, SIGKILL), 0);
  ASSERT_EQ(::waitpid(init_, nullptr, 0), init_);
  init_ = 0;
  auto text = Run("true");
  ASSERT_FALSE(text);
  EXPECT_EQ(text.error().code, Code::kUnavailable);
}

TEST(PidnsVariable, ItIsTakenFromTheEnvironment) {
  // Not a socket. Get() keeps its first answer.
  ASSERT_EQ(::setenv(kPidnsVariable, "1:1", 1), 0);
  EXPECT_EQ(PidnsInit::Get(), nullptr);
  EXPECT_EQ(::getenv(kPidnsVariable), nullptr);
}

}  // namespace
}  // namespace stasis::ipc
