// A device helper that stays between clients, with a fake driver.
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <filesystem>
#include <thread>

#include "device/cuda/helper_client.h"
#include "device/cuda/testing/target.h"
#include "ipc/resident.h"
#include "ipc/socket.h"

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
Deadline Soon() { return Deadline::In(milliseconds(20000)); }

class ResidentHelperTest : public ::testing::Test {
 protected:
  HelperOptions Options(milliseconds idle = milliseconds(60000)) {
    HelperOptions options;
    options.program = *LibexecProgram(kHelperProgram);
    options.library = TestFile("fake_driver/libcuda.so.1");
    options.settle_timeout = settle_;
    options.resident_dir = dir_.path() + "/helpers";
    options.idle_timeout = idle;
    return options;
  }
  void Write(const std::string& name, const std::string& text) {
    ASSERT_TRUE(WriteFileDurably(dir_.path() + "/" + name, text));
  }
  void Remove(const std::string& name) { std::filesystem::remove(dir_.path() + "/" + name); }
  // Uses a helper with one client, and returns the helper's pid.
  pid_t Use(const HelperOptions& options) {
    HelperClient client(options);
    auto hello = client.Hello();
    EXPECT_TRUE(hello) << hello.error().error.ToString();
    return client.helper_pid();
  }
  std::vector<std::string> Names() { return *ListDir(dir_.path() + "/helpers"); }
  // Waits for the exit of a helper and reaps it, because these helpers are children of the test.
  void ExpectEnd(pid_t pid) {
    const Deadline limit = Soon();
    while (::waitpid(pid, nullptr, WNOHANG) == 0 && !limit.passed()) ::poll(nullptr, 0, 10);
    EXPECT_NE(::kill(pid, 0), 0) << pid << " still runs";
  }
  void TearDown() override {
    EXPECT_TRUE(DismissHelpers(dir_.path() + "/helpers", Soon()));
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    EXPECT_EQ(testing::CountChildren(kHelperProgram), 0);
  }

  milliseconds settle_{1500};
  testing::TempDir dir_;
  ScopedEnv env_{"STASIS_FAKE_DRIVER", dir_.path().c_str()};
};

TEST_F(ResidentHelperTest, TheNextClientFindsIt) {
  const pid_t first = Use(Options());
  EXPECT_EQ(Use(Options()), first);
  EXPECT_EQ(Use(Options()), first);
  // No context, no lock and no client is left.
  std::string fds;
  const auto open_files = process::ReadOpenFiles({first});
  for (const auto& file : *open_files) fds += std::to_string(file.fd) + " ";
  EXPECT_EQ(fds, "0 1 2 4 5 ") << "4 watches the name, 5 listens";
}

TEST_F(ResidentHelperTest, WithoutAnIdleTimeItEndsWithItsClient) {
  const pid_t first = Use(Options(milliseconds(0)));
  EXPECT_NE(::kill(first, 0), 0);
}

TEST_F(ResidentHelperTest, AnIdleOneExits) {
  const pid_t first = Use(Options(milliseconds(200)));
  ExpectEnd(first);
  EXPECT_EQ(Names().size(), 1u) << "only the lock file";
}

TEST_F(ResidentHelperTest, ASecondClientAtOnceGetsItsOwn) {
  HelperClient one(Options());
  ASSERT_TRUE(one.Hello());
  pid_t own;
  {
    HelperClient two(Options());
    auto hello = two.Hello();
    ASSERT_TRUE(hello) << hello.error().error.ToString();
    own = two.helper_pid();
    EXPECT_NE(own, one.helper_pid());
  }
  EXPECT_NE(::kill(own, 0), 0) << "it is private";
  EXPECT_TRUE(one.Hello());
}

TEST_F(ResidentHelperTest, AKilledOneIsReplaced) {
  const pid_t first = Use(Options());
  ::kill(first, SIGKILL);
  ExpectEnd(first);
  const pid_t second = Use(Options());
  EXPECT_NE(second, first);
  EXPECT_EQ(Use(Options()), second);
}

TEST_F(ResidentHelperTest, OneThatIsKilledInACallIsReplaced) {
  HelperClient client(Options());
  ASSERT_TRUE(client.Hello());
  const pid_t first = client.helper_pid();
  Write("1", "1");
  Write("fault.Checkpoint", "die");
  auto reply = client.Call(Ask(Op::kCheckpoint, 1), Soon(), OnDeadline::kKill);
  ASSERT_FALSE(reply);
  EXPECT_EQ(reply.error().kind, CallFailure::Kind::kLost);
  Remove("fault.Checkpoint");
  EXPECT_TRUE(client.Call(Ask(Op::kCheckpoint, 1), Soon(), OnDeadline::kKill));
  EXPECT_NE(client.helper_pid(), first);
}

TEST_F(ResidentHelperTest, AHungOneIsReplaced) {
  const pid_t first = Use(Options());
  ::kill(first, SIGSTOP);
  Stopwatch watch;
  EXPECT_NE(Use(Options()), first);
  EXPECT_LT(watch.Seconds(), 15);
  ExpectEnd(first);
}

TEST_F(ResidentHelperTest, ACallThatHangsCostsOnlyItsHelper) {
  pid_t first;
  {
    HelperClient client(Options());
    ASSERT_TRUE(client.Hello());
    first = client.helper_pid();
    Write("1", "1");
    Write("fault.Checkpoint", "hang");
    auto reply =
        client.Call(Ask(Op::kCheckpoint, 1), Deadline::In(milliseconds(300)), OnDeadline::kKill);
    ASSERT_FALSE(reply);
    EXPECT_EQ(reply.error().kind, CallFailure::Kind::kDeadline);
    ExpectEnd(first);
    EXPECT_TRUE(client.Call(Ask(Op::kState, 1), Soon(), OnDeadline::kRetire));
  }
  EXPECT_NE(Use(Options()), first);
}

TEST_F(ResidentHelperTest, AnotherBuildOrDriverHasAnotherName) {
  HelperOptions options = Options();
  const pid_t first = Use(options);
  // A program with another build id has another path.
  auto here = ipc::ResidentPath(options.resident_dir, "device", options.program);
  auto there = ipc::ResidentPath(options.resident_dir, "device", TestFile("gpu_target"));
  ASSERT_TRUE(here && there);
  EXPECT_NE(*here, *there);
  // LD_LIBRARY_PATH selects another driver, so another helper is used.
  {
    ScopedEnv other("LD_LIBRARY_PATH", "/elsewhere");
    EXPECT_NE(Use(options), first);
  }
  EXPECT_EQ(Use(options), first);
}

TEST_F(ResidentHelperTest, ADriverThatCannotCheckpointIsNotKept) {
  HelperOptions options = Options();
  options.library = "/nowhere/libcuda.so.1";
  ExpectEnd(Use(options));
}

TEST_F(ResidentHelperTest, ADriverWithALastingErrorIsNotKept) {
  pid_t first;
  {
    HelperClient client(Options());
    ASSERT_TRUE(client.Hello());
    first = client.helper_pid();
    Write("1", "0");
    Write("fault.GetState", "999");
    auto reply = client.Call(Ask(Op::kState, 1), Soon(), OnDeadline::kRetire);
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->cu_result, 999);
  }
  ExpectEnd(first);
}

TEST_F(ResidentHelperTest, AQuestionIsRepeatedIfTheHelperThatWasFoundIsBroken) {
  const pid_t first = Use(Options());
  Write("1", "0");
  Write("fault.GetState.by." + std::to_string(first), "999");
  {
    HelperClient client(Options());
    auto reply = client.Call(Ask(Op::kState, 1), Soon(), OnDeadline::kRetire);
    ASSERT_TRUE(reply) << reply.error().error.ToString();
    EXPECT_EQ(reply->cu_result, 0);
    EXPECT_NE(client.helper_pid(), first);
  }
  ExpectEnd(first);
}

TEST_F(ResidentHelperTest, ACallWithSideEffectsIsNotRepeated) {
  const pid_t first = Use(Options());
  Write("1", "1");
  Write("fault.Checkpoint.by." + std::to_string(first), "999");
  {
    HelperClient client(Options());
    auto reply = client.Call(Ask(Op::kCheckpoint, 1), Soon(), OnDeadline::kKill);
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->cu_result, 999);
  }
  ExpectEnd(first);
}

TEST_F(ResidentHelperTest, ADriverThatWasReplacedIsLoadedAgain) {
  HelperOptions options = Options();
  options.library = dir_.path() + "/libcuda.so.1";
  const std::string driver = TestFile("fake_driver/libcuda.so.1");
  std::filesystem::copy_file(driver, options.library);
  const pid_t first = Use(options);
  EXPECT_EQ(Use(options), first);
  std::filesystem::copy_file(driver, options.library + ".new");
  std::filesystem::rename(options.library + ".new", options.library);
  const pid_t second = Use(options);
  EXPECT_NE(second, first);
  ExpectEnd(first);
  EXPECT_EQ(Use(options), second);
}

TEST_F(ResidentHelperTest, ItEndsWhenItsNameIsRemoved) {
  const pid_t idle = Use(Options());
  std::filesystem::remove_all(dir_.path() + "/helpers");
  ExpectEnd(idle);
  // A helper with a client stays until the client disconnects.
  pid_t busy;
  {
    HelperClient client(Options());
    ASSERT_TRUE(client.Hello());
    busy = client.helper_pid();
    std::filesystem::remove_all(dir_.path() + "/helpers");
    ::poll(nullptr, 0, 50);
    EXPECT_TRUE(client.Hello());
    EXPECT_EQ(client.helper_pid(), busy);
  }
  ExpectEnd(busy);
  EXPECT_FALSE(std::filesystem::exists(dir_.path() + "/helpers")) << "it left no file";
}

TEST_F(ResidentHelperTest, ItRaisesTheSoftLimitOfItsStarter) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 64;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  const pid_t first = Use(Options());
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit its{};
  ASSERT_EQ(::prlimit(first, RLIMIT_NOFILE, nullptr, &its), 0);
  EXPECT_EQ(its.rlim_cur, before.rlim_max);
  EXPECT_EQ(Use(Options()), first);
}

TEST_F(ResidentHelperTest, OneIsReplacedForAClientWithAnotherLimit) {
  const pid_t first = Use(Options());
  // The test does not use RLIMIT_CORE, because AddressSanitizer changes it in each process.
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_MSGQUEUE, &before), 0);
  rlimit other = before;
  other.rlim_cur = before.rlim_cur == 0 ? before.rlim_max : 0;
  if (other.rlim_cur == before.rlim_cur) GTEST_SKIP() << "no other limit to choose";
  ASSERT_EQ(::setrlimit(RLIMIT_MSGQUEUE, &other), 0);
  const pid_t second = Use(Options());
  ASSERT_EQ(::setrlimit(RLIMIT_MSGQUEUE, &before), 0);
  EXPECT_NE(second, first);
  ExpectEnd(first);
  EXPECT_NE(Use(Options()), second);
  ExpectEnd(second);
}

TEST_F(ResidentHelperTest, ClientsAtOnceAreAllServedAndOneHelperRemains) {
  std::vector<std::thread> clients;
  for (int i = 0; i < 6; ++i) {
    clients.emplace_back([this] {
      for (int round = 0; round < 4; ++round) Use(Options());
    });
  }
  for (auto& client : clients) client.join();
  EXPECT_EQ(testing::CountChildren(kHelperProgram), 1);
}

// Tests with a lock that the client hands to the helper, like a journal's.
class ResidentLockTest : public ResidentHelperTest {
 protected:
  void SetUp() override {
    lock_ = *Open(dir_.path() + "/lock", O_CREAT | O_RDWR);
    ASSERT_EQ(::flock(lock_.get(), LOCK_EX), 0);
    other_ = *Open(dir_.path() + "/lock", O_RDWR);
  }
  bool IsFree() {
    if (::flock(other_.get(), LOCK_EX | LOCK_NB) != 0) return false;
    ::flock(other_.get(), LOCK_UN);
    return true;
  }
  UniqueFd lock_, other_;
};

TEST_F(ResidentLockTest, ItIsHeldUntilTheSessionEnds) {
  HelperOptions options = Options();
  options.inherit_fd = lock_.get();
  for (int round = 0; round < 2; ++round) {
    HelperClient client(options);
    ASSERT_TRUE(client.Hello());
    if (round == 1) lock_.Reset();
    EXPECT_FALSE(IsFree());
  }
  EXPECT_TRUE(IsFree()) << "free when the client's destructor returns";
  EXPECT_EQ(testing::CountChildren(kHelperProgram), 1) << "and the helper stays";
}

// Tests with a client that is killed: its socket closes without a last request.
class DeadClientTest : public ResidentLockTest {
 protected:
  // Starts a helper with one client, and gives the client the lock.
  void SetUp() override {
    ResidentLockTest::SetUp();
    helper_ = Use(Options());
    path_ = dir_.path() + "/helpers/" + SocketName();
    auto client = ipc::ConnectResident(path_);
    ASSERT_TRUE(client) << client.error().ToString();
    ASSERT_EQ(client->pid(), helper_);
    Request hello = Ask(Op::kHello);
    hello.id = 1;
    const int lock = lock_.get();
    ASSERT_TRUE(ipc::SendPacket(client->socket(), &hello, sizeof hello, {&lock, 1}));
    wire::Reply reply;
    ASSERT_TRUE(ipc::AwaitReadable(client->socket(), Soon()));
    ASSERT_TRUE(ipc::ReceivePacket(client->socket(), &reply, sizeof reply));
    lock_.Reset();
    client_.emplace(std::move(*client));
    EXPECT_FALSE(IsFree());
  }
  std::string SocketName() {
    for (const std::string& name : Names()) {
      if (name.ends_with(".helper")) return name;
    }
    return {};
  }
  void AwaitFree() {
    const Deadline limit = Soon();
    while (!IsFree() && !limit.passed()) ::poll(nullptr, 0, 10);
    EXPECT_TRUE(IsFree());
  }

  pid_t helper_ = 0;
  std::string path_;
  std::optional<ipc::HelperProcess> client_;
};

TEST_F(DeadClientTest, AnIdleHelperReleasesItsLockAndStays) {
  client_.reset();
  AwaitFree();
  EXPECT_EQ(Use(Options()), helper_);
}

// Tests with a killed client whose driver call may continue for a long time.
class DeadSlowClientTest : public DeadClientTest {
 protected:
  DeadSlowClientTest() { settle_ = milliseconds(60000); }
};

TEST_F(DeadSlowClientTest, ItsDriverCallKeepsTheLockUntilItReturns) {
  Write("1", "1");
  Write("fault.Checkpoint", "wait");
  Request request = Ask(Op::kCheckpoint, 1);
  request.id = 2;
  ASSERT_TRUE(ipc::SendPacket(client_->socket(), &request, sizeof request));
  ::poll(nullptr, 0, 200);
  client_.reset();
  ::poll(nullptr, 0, 200);
  EXPECT_FALSE(IsFree());
  // Meanwhile other clients get their own helper.
  EXPECT_NE(Use(Options()), helper_);
  EXPECT_FALSE(IsFree());
  Remove("fault.Checkpoint");
  AwaitFree();
  EXPECT_EQ(Use(Options()), helper_);
}

TEST_F(DeadClientTest, AHelperWhoseDriverCallHangsKillsItself) {
  Write("1", "1");
  Write("fault.Checkpoint", "hang");
  Request request = Ask(Op::kCheckpoint, 1);
  request.id = 2;
  ASSERT_TRUE(ipc::SendPacket(client_->socket(), &request, sizeof request));
  ::poll(nullptr, 0, 200);
  client_.reset();
  ExpectEnd(helper_);
  EXPECT_TRUE(IsFree());
  Remove("fault.Checkpoint");
  EXPECT_NE(Use(Options()), helper_);
}

TEST_F(ResidentHelperTest, DismissedOnesEnd) {
  const pid_t first = Use(Options());
  auto count = DismissHelpers(dir_.path() + "/helpers", Soon());
  ASSERT_TRUE(count);
  EXPECT_EQ(*count, 1);
  ExpectEnd(first);
}

TEST_F(ResidentHelperTest, AFolderThatOthersMayEnterIsNotUsed) {
  ASSERT_TRUE(MakeDirs(dir_.path() + "/helpers", 0700));
  std::filesystem::permissions(dir_.path() + "/helpers", std::filesystem::perms(0755));
  const pid_t first = Use(Options());
  EXPECT_NE(::kill(first, 0), 0) << "it was private";
}

}  // namespace
}  // namespace stasis::device::cuda
