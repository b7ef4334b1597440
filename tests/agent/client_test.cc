// Clients of the agent: disconnects, and invalid input.

#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <atomic>
#include <future>
#include <thread>

#include "agent_client/find.h"
#include "agent_protocol/packet.h"
#include "stand.h"

namespace stasis::agent_test {
namespace {

using namespace stasis::cuda;  // NOLINT

// While one call blocks in the driver, the agent still answers, and other threads can query memory
// and allocate where there is space.
TEST(Client, IsAnsweredWhileACallBlocksInTheDriver) {
  Target target({"direct"});
  std::string slab = target.Ask("alloc 4194304"), large = target.Ask("alloc 33554432");
  for (const char* call : {"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap"}) {
    SCOPED_TRACE(call);
    Hold hold(1);
    Fault fault(target, std::string(call) + "=hold(1)");
    const bool frees = std::string(call) == "cuMemUnmap";
    ASSERT_EQ(target.Ask(frees ? "beside-free " + large : "beside-alloc 50331648"), "ok");
    hold.AwaitCall();
    auto client = agent_client::AgentClient::Find(target.pid(), seconds(5));
    ASSERT_DONE(client);
    EXPECT_EQ(client->hello().state, agent_protocol::State::kOpen);
    target.Say("range " + slab + " 77");
    ASSERT_TRUE(target.SpeaksWithin(seconds(5)));
    EXPECT_EQ(target.Hear(), "0 4194304");
    target.Say("alloc 2097152");
    ASSERT_TRUE(target.SpeaksWithin(seconds(5)));
    target.Hear();
    hold.Release();
    target.Ask("beside-end");
    // The blocked call is neither lost nor counted twice.
    ASSERT_DONE(client->Status(kLong));
    ASSERT_DONE(client->Close(kLong));
    auto list = client->Describe(kLong);
    ASSERT_DONE(list);
    uint64_t bytes = 0;
    for (const agent_protocol::Range& range : *list) bytes += range.size_bytes;
    EXPECT_EQ(bytes, client->hello().range_bytes);
    ASSERT_DONE(client->Open(kLong));
  }
}

// CRIU refuses a program that has the client's socket still open.
TEST(Client, IsGoneFromTheProgramWhenItHasDisconnected) {
  Target target({"direct"});
  const int sockets = SocketsOf(target.pid());
  auto client = target.Connect();
  ASSERT_DONE(client);
  EXPECT_EQ(SocketsOf(target.pid()), sockets + 1);
  // The agent cannot close its end at once.
  ASSERT_EQ(kill(target.pid().value, SIGSTOP), 0);
  siginfo_t stopped;
  ASSERT_EQ(waitid(P_PID, id_t(target.pid().value), &stopped, WSTOPPED | WNOWAIT), 0);
  auto gone = std::async(std::launch::async, [moved = std::move(*client), &target]() mutable {
    { auto ends = std::move(moved); }
    return SocketsOf(target.pid());
  });
  EXPECT_EQ(gone.wait_for(milliseconds(100)), std::future_status::timeout);
  ASSERT_EQ(kill(target.pid().value, SIGCONT), 0);
  EXPECT_EQ(gone.get(), sockets);
}

TEST(Client, ADisconnectBeforeReleaseReopens) {
  Target target({"direct"});
  std::string piece = target.Ask("alloc 20971520");
  target.Ask("fill " + piece + " 4");
  for (int step = 0; step < 3; ++step) {
    auto client = target.Connect();
    ASSERT_DONE(client);
    if (step >= 1) ASSERT_DONE(client->Close(kLong));
    if (step >= 2) ASSERT_DONE(client->ExportAll(kLong));
    client = Fail(Code::kCancelled, "dead");
    EXPECT_EQ(target.Ask("check " + piece + " 4"), "right") << step;
  }
}

TEST(Client, ADisconnectAfterReleaseLeavesTheGateClosed) {
  Target target({"direct"});
  std::string piece = target.Ask("alloc 20971520");
  target.Ask("fill " + piece + " 4");
  std::string second = target.Ask("vmm 2097152 300");
  target.Ask("fill " + second + " 5");
  agent_client::Export kept;
  {
    auto client = target.Connect();
    ASSERT_DONE(client);
    ASSERT_DONE(client->Close(kLong));
    auto taken = client->ExportAll(kLong);
    ASSERT_DONE(taken);
    ASSERT_DONE(client->Release(kNot, kLong));
    kept = std::move(*taken);
  }
  target.Say("check " + piece + " 4");
  {
    auto client = target.Connect();
    ASSERT_DONE(client);
    EXPECT_EQ(client->hello().state, agent_protocol::State::kReleased);
    EXPECT_FALSE(client->Open(kLong).has_value()) << "there is nothing to open to";
    EXPECT_FALSE(client->Close(kLong).has_value());
    // The client dies between two batches.
    std::vector<agent_protocol::Range> wrong = kept.ranges;
    wrong[250].address += 1;
    EXPECT_FALSE(client->Map(wrong, Numbers(kept.fds), kLong).has_value());
  }
  {
    auto client = target.Connect();
    ASSERT_DONE(client);
    ASSERT_DONE(client->Map(kept.ranges, Numbers(kept.fds), kLong));
    // A disconnect after the map opens the gate.
  }
  EXPECT_EQ(target.Hear(), "right");
  EXPECT_EQ(target.Ask("check " + second + " 5"), "right");
}

// The coordinator and the mover die while they hold the memory.
TEST(Client, ADisconnectBeforeCommitRestoresEverything) {
  Target target({"direct"});
  std::string piece = target.Ask("alloc 20971520");
  target.Ask("fill " + piece + " 4");
  std::string second = target.Ask("vmm-released 2097152 30");
  target.Ask("fill " + second + " 5");
  for (int round = 0; round < 3; ++round) {
    {
      auto client = target.Connect();
      ASSERT_DONE(client);
      ASSERT_DONE(client->Close(kLong));
      ASSERT_DONE(client->ExportAll(kLong));
      ASSERT_DONE(client->Release(kUntilCommit, kLong));
    }
    EXPECT_EQ(target.Ask("check " + piece + " 4"), "right") << round;
    EXPECT_EQ(target.Ask("check " + second + " 5"), "right") << round;
  }
  // The same if the driver has checkpointed the rest meanwhile.
  {
    auto client = target.Connect();
    ASSERT_DONE(client);
    ASSERT_DONE(client->Close(kLong));
    ASSERT_DONE(client->ExportAll(kLong));
    ASSERT_DONE(client->Release(kUntilCommit, kLong));
    UseGpu();
    LockAndCheckpoint(target);
  }
  RestoreAndUnlock(target);
  EXPECT_EQ(target.Ask("check " + piece + " 4"), "right");
}

TEST(Client, CommitReleasesTheMemory) {
  Target target({"direct"});
  std::string piece = target.Ask("alloc 20971520");
  target.Ask("fill " + piece + " 4");
  auto client = target.Connect();
  ASSERT_DONE(client);
  EXPECT_EQ(client->Commit(kLong).error().code, Code::kFailedPrecondition);
  ASSERT_DONE(client->Close(kLong));
  auto taken = client->ExportAll(kLong);
  ASSERT_DONE(taken);
  ASSERT_DONE(client->Release(kUntilCommit, kLong));
  auto bytes = TakeAway(&*taken);
  size_t held = FreeBytes();
  ASSERT_DONE(client->Commit(kLong));
  EXPECT_GE(FreeBytes(), held + 20 * kMiB);
  auto fds = PutBack(*taken, bytes);
  ASSERT_DONE(client->Map(taken->ranges, Numbers(fds), kLong));
  ASSERT_DONE(client->Open(kLong));
  EXPECT_EQ(target.Ask("check " + piece + " 4"), "right");
}

TEST(Client, OnlyOneAtATime) {
  Target target({"direct"});
  auto first = target.Connect();
  ASSERT_DONE(first);
  auto second = target.Connect();
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code, Code::kAborted);
  first = Fail(Code::kCancelled, "gone");
  // The agent notices the first disconnect at its next poll, so a new client may be slightly early.
  auto third = target.Connect();
  for (int i = 0; i < 100 && !third && third.error().code == Code::kAborted; ++i) {
    third = target.Connect();
  }
  ASSERT_DONE(third);
}

TEST(Client, ConcurrentClientsAreRejectedWithAReason) {
  Target target({"direct"});
  auto first = target.Connect();
  ASSERT_DONE(first);
  std::vector<std::thread> others;
  std::atomic<int> told{0};
  constexpr int kOthers = 8, kTimes = 50;
  for (int i = 0; i < kOthers; ++i) {
    others.emplace_back([&] {
      for (int n = 0; n < kTimes; ++n) {
        auto refused = target.Connect();
        told += !refused && refused.error().code == Code::kAborted ? 1 : 0;
      }
    });
  }
  for (std::thread& other : others) other.join();
  EXPECT_EQ(told, kOthers * kTimes);
}

TEST(Client, AWrongOrderIsRejectedAndChangesNothing) {
  Target target({"direct"});
  auto client = target.Connect();
  ASSERT_DONE(client);
  EXPECT_EQ(client->Release(kNot, kLong).error().code, Code::kFailedPrecondition);
  EXPECT_EQ(client->Open(kLong).error().code, Code::kFailedPrecondition);
  EXPECT_EQ(client->ExportAll(kLong).error().code, Code::kFailedPrecondition);
  EXPECT_EQ(client->Map({}, {}, kLong).error().code, Code::kFailedPrecondition);
  ASSERT_DONE(client->Close(kLong));
  EXPECT_EQ(client->Close(kLong).error().code, Code::kFailedPrecondition);
  ASSERT_DONE(client->Open(kLong));
}

TEST(ControlSocket, IsMadeAgainAfterTheProgramClosesEverything) {
  Target target({"direct"});
  std::string piece = target.Ask("alloc 20971520");
  ASSERT_EQ(target.Ask("close-descriptors"), "ok");
  // The agent notices the closed socket at an unspecified time.
  auto client = target.Connect();
  for (int i = 0; i < 6000 && !client; ++i) {
    client = target.Connect();
    usleep(10000);
  }
  ASSERT_DONE(client);
  ASSERT_DONE(client->Close(kLong));
  ASSERT_DONE(client->Open(kLong));
}

TEST(ControlSocket, AForkedChildHasNone) {
  Target target({"direct"});
  target.Ask("alloc 20971520");
  auto client = target.Connect();
  ASSERT_DONE(client);
  ASSERT_DONE(client->Close(kLong));
  auto taken = client->ExportAll(kLong);
  ASSERT_DONE(taken);
  ASSERT_DONE(client->Release(kNot, kLong));
  ASSERT_DONE(client->Map(taken->ranges, Numbers(taken->fds), kLong));
  ASSERT_DONE(client->Open(kLong));
  EXPECT_EQ(target.Ask("fork"), "0");
  ASSERT_DONE(client->Close(kLong));
  ASSERT_DONE(client->Open(kLong));
}

TEST(ControlSocket, NoneWithoutAgentOrBeforeTheGpuIsUsed) {
  Target plain({"direct"}, false);
  auto none = plain.Connect();
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code, Code::kNotFound);
  Target cat({}, true, "/bin/cat");
  EXPECT_EQ(cat.Ask("hello"), "hello");
  auto idle = cat.Connect();
  ASSERT_FALSE(idle.has_value());
  EXPECT_EQ(idle.error().code, Code::kNotFound);
}

// Any process that may trace the program may send anything; the program must not notice.
TEST(ControlSocket, GarbageIsIgnored) {
  Target target({"direct"});
  std::string piece = target.Ask("alloc 20971520");
  target.Ask("fill " + piece + " 4");
  auto header = agent_client::ReadAgentHeader(target.pid());
  ASSERT_DONE(header);
  UniqueFd process(int(syscall(SYS_pidfd_open, target.pid().value, 0)));
  UniqueFd control(int(syscall(438, process.get(), header->control_fd, 0)));
  ASSERT_TRUE(control.valid());
  std::string garbage(5000, 'x');
  EXPECT_GT(send(control.get(), garbage.data(), garbage.size(), 0), 0);
  EXPECT_GT(send(control.get(), "\1", 1, 0), 0) << "a message without a socket";
  EXPECT_EQ(agent_protocol::SendClientSocket(control.get(), control.get()), agent_protocol::Io::kOk)
      << "the control socket itself";
  int stream[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, stream), 0);
  EXPECT_EQ(agent_protocol::SendClientSocket(control.get(), stream[0]), agent_protocol::Io::kOk)
      << "not a socket of packets";
  EXPECT_EQ(agent_protocol::SendClientSocket(control.get(), process.get()), agent_protocol::Io::kOk)
      << "not a socket";
  agent_protocol::CloseAll(stream, 2);
  EXPECT_EQ(target.Ask("check " + piece + " 4"), "right");
}

TEST(ControlSocket, GarbageFromAClientEndsItsConnection) {
  Target target({"direct"});
  std::string piece = target.Ask("alloc 20971520");
  target.Ask("fill " + piece + " 4");
  auto connect = [&] { return ConnectSocket(target); };
  auto ends_after = [&](UniqueFd& socket) {
    agent_protocol::Packet packet;
    int fds[agent_protocol::kMaxBatch];
    uint32_t count = 0;
    agent_protocol::Io io = agent_protocol::Io::kOk;
    while (io == agent_protocol::Io::kOk) {
      io = agent_protocol::Receive(socket.get(), &packet, fds, &count, 20000);
    }
    return io;
  };
  {
    UniqueFd socket = connect();
    std::string garbage(70000, 'x');
    EXPECT_GT(send(socket.get(), garbage.data(), garbage.size(), 0), 0);
    EXPECT_EQ(ends_after(socket), agent_protocol::Io::kEnd);
  }
  {
    // A well-formed reply in place of a request, with the gate closed by the previous request.
    UniqueFd socket = connect();
    agent_protocol::CloseRequest close{};
    close.timeout_ms = 10000;
    agent_protocol::Send(socket.get(), &close, agent_protocol::Type::kClose, sizeof(close), nullptr,
                         0, 1000);
    agent_protocol::Reply reply{};
    agent_protocol::Send(socket.get(), &reply, agent_protocol::Type::kReply, sizeof(reply), nullptr,
                         0, 1000);
    EXPECT_EQ(ends_after(socket), agent_protocol::Io::kEnd);
    EXPECT_EQ(target.Ask("check " + piece + " 4"), "right") << "the gate is open again";
  }
  {
    // Counts that do not match the content.
    UniqueFd socket = connect();
    agent_protocol::Ranges ranges{};
    ranges.count = 150;
    ranges.total = 150;
    agent_protocol::Send(socket.get(), &ranges, agent_protocol::Type::kMap, sizeof(ranges), nullptr,
                         0, 1000);
    EXPECT_EQ(ends_after(socket), agent_protocol::Io::kEnd);
  }
  auto client = target.Connect();
  ASSERT_DONE(client);
}

}  // namespace
}  // namespace stasis::agent_test
