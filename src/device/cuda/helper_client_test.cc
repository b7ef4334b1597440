#include "device/cuda/helper_client.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <thread>

#include "device/cuda/testing/target.h"
#include "ipc/helper_process.h"

namespace stasis::device::cuda {
namespace {

using std::chrono::milliseconds;
using testing::ScopedEnv;
using testing::TestFile;
using wire::Op;
using wire::Request;

Request Ask(Op op, pid_t pid = 0) {
  Request request;
  request.op = op;
  request.pid = pid;
  return request;
}
Deadline Soon() { return Deadline::In(milliseconds(10000)); }

// The real helper with a fake driver. Files in dir_ hold the driver's states and faults.
class HelperClientTest : public ::testing::Test {
 protected:
  HelperOptions Options() {
    HelperOptions options;
    options.program = *LibexecProgram("stasis-device-helper");
    options.library = TestFile("fake_driver/libcuda.so.1");
    options.settle_timeout = milliseconds(2000);
    return options;
  }
  void Write(const std::string& name, const std::string& text) {
    ASSERT_TRUE(WriteFileDurably(dir_.path() + "/" + name, text));
  }
  void TearDown() override { EXPECT_EQ(testing::CountChildren("stasis-device-helper"), 0); }

  testing::TempDir dir_;
  ScopedEnv env_{"STASIS_FAKE_DRIVER", dir_.path().c_str()};
};

TEST_F(HelperClientTest, OneHelperServesAllAndEndsWithItsClient) {
  pid_t helper;
  {
    HelperClient client(Options());
    EXPECT_EQ(client.helper_pid(), 0);  // started on demand
    auto hello = client.Hello();
    ASSERT_TRUE(hello) << hello.error().error.ToString();
    EXPECT_STREQ(hello->driver.kind, "nvidia");
    EXPECT_EQ(hello->driver.api_version, 13000);
    EXPECT_EQ(hello->driver.can_checkpoint, 1u);
    helper = client.helper_pid();
    Write("4711", "1");
    for (int i = 0; i < 100; ++i) {
      auto state = client.Call(Ask(Op::kState, 4711), Soon(), OnDeadline::kRetire);
      ASSERT_TRUE(state);
      EXPECT_EQ(state->state, 1);
    }
    EXPECT_EQ(client.helper_pid(), helper);
  }
  EXPECT_NE(::kill(helper, 0), 0);
}

TEST_F(HelperClientTest, HelperHasAScrubbedEnvironmentAndOnlyItsDescriptors) {
  ScopedEnv injected("CUDA_INJECTION64_PATH", "/evil.so");
  int leaked = ::open("/dev/null", O_RDONLY);  // without O_CLOEXEC
  int lock = ::open((dir_.path() + "/lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  HelperOptions options = Options();
  options.inherit_fd = lock;
  HelperClient client(options);
  ASSERT_TRUE(client.Hello());
  const process::HostPid pid{client.helper_pid()};
  auto environment = ReadFile("/proc/" + process::ToString(pid) + "/environ");
  EXPECT_EQ(environment->find("CUDA_INJECTION64_PATH"), std::string::npos);
  EXPECT_NE(environment->find("CUDA_DEVICE_ORDER=PCI_BUS_ID"), std::string::npos);
  std::string fds;
  const auto open_files = process::ReadOpenFiles(pid);
  for (const auto& file : *open_files) fds += std::to_string(file.fd) + " ";
  EXPECT_EQ(fds, "0 1 2 3 4 ");
  EXPECT_NE(process::ReadStat(pid)->session, process::ReadStat({::getpid()})->session);
  ::close(leaked);
  ::close(lock);
}

TEST_F(HelperClientTest, CallThatHangsCostsItsHelperAndNothingElse) {
  HelperClient client(Options());
  ASSERT_TRUE(client.Hello());
  const pid_t first = client.helper_pid();
  Write("1", "1");
  Write("fault.Checkpoint.1", "hang");
  Stopwatch watch;
  auto reply =
      client.Call(Ask(Op::kCheckpoint, 1), Deadline::In(milliseconds(300)), OnDeadline::kKill);
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().kind, CallFailure::Kind::kDeadline);
  EXPECT_LT(watch.Seconds(), 15);
  EXPECT_NE(::kill(first, 0), 0) << "the helper must have gone";
  auto state = client.Call(Ask(Op::kState, 1), Soon(), OnDeadline::kRetire);
  ASSERT_TRUE(state) << state.error().error.ToString();
  EXPECT_EQ(state->state, 1);
  EXPECT_NE(client.helper_pid(), first);
}

TEST_F(HelperClientTest, OthersLearnWhyTheirHelperEnded) {
  HelperClient client(Options());
  ASSERT_TRUE(client.Hello());
  Write("1", "1");
  Write("2", "1");
  Write("fault.Checkpoint", "hang");
  std::thread other([&] {
    auto reply = client.Call(Ask(Op::kCheckpoint, 2), Soon(), OnDeadline::kKill);
    ASSERT_FALSE(reply);
    EXPECT_EQ(reply.error().kind, CallFailure::Kind::kLost);
    EXPECT_NE(reply.error().error.message.find("process 1"), std::string::npos)
        << reply.error().error.message;
  });
  auto reply =
      client.Call(Ask(Op::kCheckpoint, 1), Deadline::In(milliseconds(2000)), OnDeadline::kKill);
  other.join();
  EXPECT_EQ(reply.error().kind, CallFailure::Kind::kDeadline);
}

TEST_F(HelperClientTest, QuestionThatHangsLeavesOthersToFinish) {
  HelperClient client(Options());
  ASSERT_TRUE(client.Hello());
  const pid_t first = client.helper_pid();
  Write("1", "1");
  Write("2", "1");
  Write("fault.GetState.1", "hang");
  // The checkpoint of process 2 hangs until the helper is killed, and does not change the state.
  Write("fault.Checkpoint.2", "hang");
  std::thread other([&] {
    auto reply =
        client.Call(Ask(Op::kCheckpoint, 2), Deadline::In(milliseconds(6000)), OnDeadline::kKill);
    EXPECT_EQ(reply.error().kind, CallFailure::Kind::kDeadline);
  });
  auto reply =
      client.Call(Ask(Op::kState, 1), Deadline::In(milliseconds(1500)), OnDeadline::kRetire);
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().kind, CallFailure::Kind::kDeadline);
  // Meanwhile another helper answers new requests.
  auto state = client.Call(Ask(Op::kState, 2), Soon(), OnDeadline::kRetire);
  ASSERT_TRUE(state);
  EXPECT_NE(client.helper_pid(), first);
  EXPECT_EQ(::kill(first, 0), 0) << "the first one still works for the other call";
  other.join();
  EXPECT_NE(::kill(first, 0), 0);
}

TEST_F(HelperClientTest, HelperThatDiesInACallIsNamed) {
  HelperClient client(Options());
  ASSERT_TRUE(client.Hello());
  Write("1", "1");
  Write("fault.Checkpoint", "die");
  auto reply = client.Call(Ask(Op::kCheckpoint, 1), Soon(), OnDeadline::kKill);
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().kind, CallFailure::Kind::kLost);
  EXPECT_NE(reply.error().error.message.find("signal 10"), std::string::npos)
      << reply.error().error.message;
  EXPECT_TRUE(client.Call(Ask(Op::kState, 1), Soon(), OnDeadline::kRetire));
}

TEST_F(HelperClientTest, HelperKilledBetweenCallsIsReplaced) {
  HelperClient client(Options());
  Write("1", "0");
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(client.Hello());
    const pid_t pid = client.helper_pid();
    auto pidfd = process::OpenPidfd(process::ReadStat({pid})->id);
    ::kill(pid, SIGKILL);
    pollfd p{pidfd->get(), POLLIN, 0};
    ASSERT_EQ(::poll(&p, 1, 10000), 1);
    // The client may not have noticed the exit yet, so a request without side effects may need a
    // retry.
    auto state = client.Call(Ask(Op::kState, 1), Soon(), OnDeadline::kRetire);
    if (!state) state = client.Call(Ask(Op::kState, 1), Soon(), OnDeadline::kRetire);
    ASSERT_TRUE(state) << state.error().error.ToString();
    EXPECT_NE(client.helper_pid(), pid);
  }
}

TEST_F(HelperClientTest, StoppedHelperIsCaughtByTheDeadline) {
  HelperClient client(Options());
  ASSERT_TRUE(client.Hello());
  ::kill(client.helper_pid(), SIGSTOP);
  auto reply =
      client.Call(Ask(Op::kState, 1), Deadline::In(milliseconds(200)), OnDeadline::kRetire);
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().kind, CallFailure::Kind::kDeadline);
  EXPECT_TRUE(client.Hello());
}

TEST_F(HelperClientTest, DriverThatDoesNotStartInTime) {
  Write("fault.cuInit", "hang");
  HelperOptions options = Options();
  options.start_timeout = milliseconds(200);
  HelperClient client(options);
  auto hello = client.Hello();
  ASSERT_FALSE(hello);
  EXPECT_EQ(hello.error().kind, CallFailure::Kind::kNotStarted);
  EXPECT_EQ(hello.error().error.code, Code::kDeadlineExceeded);
}

TEST_F(HelperClientTest, MissingProgramIsAnError) {
  HelperOptions options = Options();
  options.program = dir_.path() + "/no-such-program";
  HelperClient client(options);
  auto hello = client.Hello();
  ASSERT_FALSE(hello);
  EXPECT_EQ(hello.error().error.code, Code::kNotFound);
}

TEST_F(HelperClientTest, ManyThreadsAtOnce) {
  HelperClient client(Options());
  std::vector<std::thread> threads;
  for (int t = 1; t <= 8; ++t) {
    Write(std::to_string(t), "0");
    threads.emplace_back([&client, t] {
      for (int i = 0; i < 25; ++i) {
        for (Op op : {Op::kLock, Op::kCheckpoint, Op::kRestore, Op::kUnlock}) {
          auto reply = client.Call(Ask(op, t), Soon(), OnDeadline::kKill);
          ASSERT_TRUE(reply) << reply.error().error.ToString();
          ASSERT_EQ(reply->outcome, wire::Outcome::kDone) << reply->cu_name;
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

// Invalid messages of a broken helper are rejected, and the helper is killed.
class BadHelperTest : public HelperClientTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(BadHelperTest, GarbageIsRefused) {
  ScopedEnv way("STASIS_BAD_HELPER", GetParam());
  HelperOptions options = Options();
  options.program = TestFile("bad_helper");
  {
    HelperClient client(options);
    ASSERT_TRUE(client.Hello());
    const pid_t pid = client.helper_pid();
    auto reply = client.Call(Ask(Op::kState, 1), Soon(), OnDeadline::kRetire);
    ASSERT_FALSE(reply);
    EXPECT_EQ(reply.error().kind, CallFailure::Kind::kLost);
    EXPECT_EQ(reply.error().error.code, Code::kUnavailable);
    EXPECT_NE(::kill(pid, 0), 0);
  }
  EXPECT_EQ(testing::CountChildren("bad_helper"), 0);
}
INSTANTIATE_TEST_SUITE_P(All, BadHelperTest,
                         ::testing::Values("short", "long", "magic", "version", "id", "op",
                                           "other-op", "outcome", "state", "gpus", "text", "exit"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

// Sends packets to a helper directly, without HelperClient.
class RawHelperTest : public HelperClientTest {
 protected:
  void SetUp() override {
    int fds[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    socket_.Reset(fds[0]);
    UniqueFd theirs(fds[1]);
    SpawnOptions spawn;
    spawn.argv = {Options().program, "--library", Options().library, "--settle-ms", "300"};
    spawn.fds = {{ipc::kHelperSocketFd, theirs.get()}};
    if (lock_.valid()) spawn.fds[ipc::kHelperLockFd] = lock_.get();
    auto child = Subprocess::Spawn(spawn);
    ASSERT_TRUE(child);
    helper_ = std::move(*child);
  }
  void TearDown() override {
    socket_.Reset();
    helper_.Kill(SIGKILL);
    EXPECT_TRUE(helper_.Wait());
    HelperClientTest::TearDown();
  }
  wire::Reply Exchange(const void* data, size_t size) {
    EXPECT_EQ(::send(socket_.get(), data, size, MSG_NOSIGNAL), static_cast<ssize_t>(size));
    wire::Reply reply;
    ssize_t got = ::recv(socket_.get(), &reply, sizeof reply, MSG_TRUNC);
    EXPECT_EQ(wire::WhyInvalid(reply, static_cast<size_t>(got)), nullptr);
    return reply;
  }

  UniqueFd lock_;
  UniqueFd socket_;
  Subprocess helper_;
};

TEST_F(RawHelperTest, GarbageIsRefusedAndTheHelperLivesOn) {
  Request request = Ask(Op::kHello);
  request.id = 7;
  EXPECT_EQ(Exchange("x", 1).outcome, wire::Outcome::kBadRequest);
  std::string huge(100000, '\xff');
  EXPECT_EQ(Exchange(huge.data(), huge.size()).outcome, wire::Outcome::kBadRequest);
  EXPECT_EQ(Exchange(huge.data(), sizeof request).outcome, wire::Outcome::kBadRequest);
  Request negative = Ask(Op::kLock, -5);
  negative.id = 8;
  auto refused = Exchange(&negative, sizeof negative);
  EXPECT_EQ(refused.outcome, wire::Outcome::kBadRequest);
  EXPECT_EQ(refused.id, 8u);
  EXPECT_EQ(Exchange(&request, sizeof request).outcome, wire::Outcome::kDone);
}

TEST_F(RawHelperTest, IdleHelperEndsWithItsSocket) {
  Request request = Ask(Op::kHello);
  request.id = 1;
  Exchange(&request, sizeof request);
  socket_.Reset();
  auto status = helper_.Wait(Deadline::In(milliseconds(5000)));
  ASSERT_TRUE(status);
  EXPECT_TRUE(WIFEXITED(*status));
}

TEST_F(RawHelperTest, HelperThatHangsInTheDriverEndsItself) {
  Write("1", "1");
  Write("fault.Checkpoint", "hang");
  Request request = Ask(Op::kCheckpoint, 1);
  request.id = 1;
  ASSERT_EQ(::send(socket_.get(), &request, sizeof request, 0), ssize_t{sizeof request});
  socket_.Reset();
  auto status = helper_.Wait(Deadline::In(milliseconds(5000)));
  ASSERT_TRUE(status);
  EXPECT_TRUE(WIFSIGNALED(*status));
}

TEST_F(HelperClientTest, InheritedLockIsHeldUntilTheHelperEnds) {
  const std::string path = dir_.path() + "/lock";
  auto lock = Open(path, O_CREAT | O_RDWR);
  ASSERT_EQ(::flock(lock->get(), LOCK_EX), 0);
  auto other = Open(path, O_RDWR);
  {
    HelperOptions options = Options();
    options.inherit_fd = lock->get();
    HelperClient client(options);
    ASSERT_TRUE(client.Hello());
    lock->Reset();
    EXPECT_NE(::flock(other->get(), LOCK_EX | LOCK_NB), 0);
  }
  EXPECT_EQ(::flock(other->get(), LOCK_EX | LOCK_NB), 0);
}

}  // namespace
}  // namespace stasis::device::cuda
