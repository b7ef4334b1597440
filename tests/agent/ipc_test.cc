// CUDA IPC between two programs under the agent: compared with the plain driver, and through a
// suspend of both.

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "stand.h"

namespace stasis::agent_test {
namespace {

using namespace stasis::cuda;  // NOLINT

constexpr const char* kInvalidContext = "error 201";

// While an object exists, the target cannot get new descriptors.
class NoDescriptors {
 public:
  explicit NoDescriptors(const Target& target) : pid_(target.pid().value) {
    EXPECT_EQ(prlimit(pid_, RLIMIT_NOFILE, nullptr, &before_), 0);
    const rlimit none{3, before_.rlim_max};
    EXPECT_EQ(prlimit(pid_, RLIMIT_NOFILE, &none, nullptr), 0);
  }
  ~NoDescriptors() { EXPECT_EQ(prlimit(pid_, RLIMIT_NOFILE, &before_, nullptr), 0); }
  NoDescriptors(const NoDescriptors&) = delete;

 private:
  pid_t pid_;
  rlimit before_{};
};

// Returns the /proc directories of the target's threads of that name.
std::vector<std::filesystem::path> Threads(const Target& target, const std::string& name) {
  std::vector<std::filesystem::path> found;
  const std::string tasks = "/proc/" + std::to_string(target.pid().value) + "/task";
  for (const auto& task : std::filesystem::directory_iterator(tasks)) {
    std::string comm;
    std::getline(std::ifstream(task.path() / "comm"), comm);
    if (comm == name) found.push_back(task.path());
  }
  return found;
}

// Returns the CPU time of a thread, in ticks of 10 ms.
long ProcessorTime(const std::filesystem::path& thread) {
  std::string text;
  std::getline(std::ifstream(thread / "stat"), text);
  std::istringstream fields(text.substr(text.rfind(')') + 2));
  std::string skipped;
  for (int i = 0; i < 11; ++i) fields >> skipped;
  long user = 0, system = 0;
  fields >> user >> system;
  return user + system;
}

class IpcLookups : public ::testing::TestWithParam<const char*> {};

// Sharing in both directions, at all sizes, inside a slab and separately allocated.
TEST_P(IpcLookups, TwoProcessesShareMemory) {
  Target owner({GetParam()}), importer({GetParam()});
  for (const char* bytes : {"4096", "3000000", "20971520", "2097152"}) {
    SCOPED_TRACE(bytes);
    const std::string mine = owner.Ask(std::string("alloc ") + bytes);
    ASSERT_EQ(owner.Ask("fill " + mine + " 5"), "ok");
    const std::string handle = owner.Ask("ipc-get " + mine + " 0");
    EXPECT_EQ(owner.Ask("ipc-get " + mine + " 512"), handle) << "it is of the whole allocation";
    const std::string theirs = importer.Ask("ipc-open " + handle);
    ASSERT_EQ(importer.Ask("check " + theirs + " 5"), "right");
    EXPECT_EQ(importer.Ask("range " + theirs + " 100"), std::string("0 ") + bytes);
    ASSERT_EQ(importer.Ask("fill " + theirs + " 6"), "ok");
    EXPECT_EQ(owner.Ask("check " + mine + " 6"), "right");
    EXPECT_EQ(importer.Ask("ipc-get " + theirs + " 0"), kInvalidValue) << "not handed on";
    EXPECT_EQ(importer.Ask("ipc-close " + theirs), "0");
    EXPECT_EQ(importer.Ask("ipc-close " + theirs), "1");
    EXPECT_EQ(owner.Ask("check " + mine + " 6"), "right");
  }
}

TEST(Ipc, AnswersLikeThePlainDriver) {
  Target owner({"direct"}), importer({"direct"});
  const size_t before = FreeBytes();
  const std::string a = owner.Ask("alloc 3000000"), b = owner.Ask("alloc 2000000");
  owner.Ask("fill " + a + " 1");
  owner.Ask("fill " + b + " 2");
  EXPECT_EQ(owner.Ask("ipc-capable " + a), "1");
  const std::string handle = owner.Ask("ipc-get " + a), other = owner.Ask("ipc-get " + b);
  EXPECT_EQ(owner.Ask("ipc-open " + handle), kInvalidContext) << "not in its own process";

  // A second open returns the same address. The memory stays open until it is closed twice.
  const std::string first = importer.Ask("ipc-open " + handle);
  const std::string second = importer.Ask("ipc-open " + handle);
  EXPECT_EQ(importer.Ask("address " + first), importer.Ask("address " + second));
  EXPECT_EQ(importer.Ask("ipc-capable " + first), "0");
  EXPECT_EQ(importer.Ask("free " + first), "1") << "it is closed, not freed";
  EXPECT_EQ(importer.Ask("ipc-close " + first), "0");
  EXPECT_EQ(importer.Ask("check " + first + " 1"), "right");
  // Neighbours in one slab are opened and closed independently.
  const std::string neighbour = importer.Ask("ipc-open " + other);
  EXPECT_EQ(importer.Ask("ipc-close " + second), "0");
  EXPECT_EQ(importer.Ask("ipc-close " + second), "1");
  EXPECT_EQ(importer.Ask("check " + neighbour + " 2"), "right");

  // The owner frees the memory and exits; a process that has it open keeps it.
  EXPECT_EQ(owner.Ask("free " + b), "0");
  EXPECT_EQ(importer.Ask("check " + neighbour + " 2"), "right");
  Target late({"direct"});
  EXPECT_EQ(late.Ask("ipc-open " + other), kInvalidValue) << "freed";
  kill(owner.pid().value, SIGKILL);
  owner.Wait();
  EXPECT_EQ(importer.Ask("check " + neighbour + " 2"), "right");
  EXPECT_EQ(late.Ask("ipc-open " + handle), kInvalidValue) << "ended";
  EXPECT_EQ(importer.Ask("ipc-close " + neighbour), "0");
  // The software GPU notices the owner's end after a delay.
  for (int i = 0; i < 60000 && FreeBytes() < before; ++i) usleep(1000);
  EXPECT_GE(FreeBytes(), before) << "and that was the last of it";
}

TEST(Ipc, TheEndOfAContextClosesItsImports) {
  Target owner({"direct"}), importer({"direct"});
  const std::string mine = owner.Ask("alloc 33554432");
  owner.Ask("fill " + mine + " 1");
  importer.Ask("ipc-open " + owner.Ask("ipc-get " + mine));
  ASSERT_EQ(importer.Ask("reset"), "ok");
  auto client = owner.Connect();
  ASSERT_DONE(client);
  EXPECT_EQ(client->hello().ipc_peer_count, 0u);
  EXPECT_EQ(owner.Ask("check " + mine + " 1"), "right");
}

// Handles may come from any process.
TEST(Ipc, AForgedHandleOpensNothing) {
  Target owner({"direct"}), importer({"direct"}), plain({"direct"}, /*agent=*/false);
  const std::string mine = owner.Ask("alloc 3000000");
  const std::string handle = owner.Ask("ipc-get " + mine);
  ASSERT_EQ(handle.size(), 128u);
  // Changes each field in turn: name, process, version, allocation. (A changed magic would make it
  // a driver's handle.)
  for (size_t at : {16u, 50u, 56u, 64u}) {
    std::string spoiled = handle;
    spoiled[at] = spoiled[at] == 'a' ? 'b' : 'a';
    EXPECT_EQ(importer.Ask("ipc-open " + spoiled), kInvalidValue) << at;
  }
  EXPECT_EQ(importer.Ask("ipc-open " + std::string(128, 'f')), kInvalidValue);
  EXPECT_EQ(plain.Ask("ipc-open " + handle), kInvalidValue) << "without an agent";
  EXPECT_EQ(importer.Ask("ipc-open " + handle), "0");
}

// Memory shared by a program without an agent belongs to the driver, which could not restore it.
// The error names the call that opened it.
TEST(Ipc, MemorySharedByTheDriverIsABlocker) {
  Target plain({"direct"}, /*agent=*/false), importer({"direct"});
  plain.Ask("alloc 4096");
  importer.Ask("ipc-open " + plain.Ask("ipc-get 0"));
  importer.Ask("ipc-open-event " + plain.Ask("ipc-share-event"));
  auto client = importer.Connect();
  ASSERT_DONE(client);
  EXPECT_EQ(client->hello().blockers,
            agent_protocol::kBlockerLegacyIpc | agent_protocol::kBlockerIpcEvent);
  Status closed = client->Close(kLong);
  ASSERT_FALSE(closed.has_value());
  EXPECT_EQ(importer.Ask("ipc-close 0"), "0");
  closed = client->Close(kLong);
  ASSERT_FALSE(closed.has_value());
  EXPECT_NE(closed.error().ToString().find("cuIpcOpenEventHandle"), std::string::npos);
  EXPECT_EQ(importer.Ask("ipc-end-event 0"), "ok");
  ASSERT_DONE(client->Close(kLong));
  ASSERT_DONE(client->Open(kLong));
}

TEST_P(IpcLookups, AnEventOrdersTwoProcesses) {
  Target owner({GetParam()}), importer({GetParam()});
  const std::string handle = owner.Ask("ipc-share-event");
  ASSERT_EQ(importer.Ask("ipc-open-event " + handle), "ok");
  EXPECT_EQ(importer.Ask("ipc-query 0"), "0") << "never recorded";
  for (const char* wait : {"ipc-wait 0", "ipc-sync 0"}) {
    ASSERT_EQ(owner.Ask("stuck"), "ok");
    ASSERT_EQ(owner.Ask("ipc-record 0"), "0");
    EXPECT_EQ(importer.Ask("ipc-query 0"), "600");
    importer.Say(wait);
    EXPECT_FALSE(importer.Speaks());
    ASSERT_EQ(owner.Ask("unstuck"), "ok");
    EXPECT_EQ(importer.Hear(), "0") << wait;
    EXPECT_EQ(importer.Ask("ipc-query 0"), "0");
  }
  EXPECT_EQ(importer.Ask("ipc-record 0"), "801") << "the owner alone";
  // The event is destroyed or its owner has exited: there is nothing to wait for.
  EXPECT_EQ(owner.Ask("ipc-end-event 0"), "ok");
  EXPECT_EQ(importer.Ask("ipc-wait 0"), "0");
  EXPECT_EQ(Target({"direct"}).Ask("ipc-open-event " + handle), kInvalidValue);
  kill(owner.pid().value, SIGKILL);
  owner.Wait();
  EXPECT_EQ(importer.Ask("ipc-wait 0"), "0");
}

INSTANTIATE_TEST_SUITE_P(, IpcLookups, ::testing::Values("direct", "dlsym", "lookup", "cudart"),
                         [](const auto& info) { return std::string(info.param); });

// Both programs are processes of one job; their memory is removed and restored elsewhere.
TEST(Ipc, BothAreSuspendedAndRestored) {
  Target owner({"direct"}), importer({"direct"});
  const std::string mine = owner.Ask("alloc 3000000"), more = owner.Ask("alloc 33554432");
  owner.Ask("fill " + mine + " 1");
  owner.Ask("fill " + more + " 2");
  const std::string handle = owner.Ask("ipc-get " + mine);
  const std::string theirs = importer.Ask("ipc-open " + handle);
  const std::string theirs_too = importer.Ask("ipc-open " + owner.Ask("ipc-get " + more));
  const std::string address = importer.Ask("address " + theirs);
  ASSERT_EQ(importer.Ask("ipc-open-event " + owner.Ask("ipc-share-event")), "ok");
  for (int round = 0; round < 2; ++round) {
    auto a = owner.Connect(), b = importer.Connect();
    ASSERT_DONE(a);
    ASSERT_DONE(b);
    ASSERT_EQ(a->hello().ipc_peer_count, 1u);
    EXPECT_EQ(a->hello().ipc_peers[0].role, agent_protocol::kIpcUsesOurs);
    EXPECT_EQ(a->hello().ipc_peers[0].pid, importer.pid().value);
    ASSERT_EQ(b->hello().ipc_peer_count, 1u);
    EXPECT_EQ(b->hello().ipc_peers[0].role, agent_protocol::kIpcOwnsTheirs);
    EXPECT_EQ(b->hello().ipc_ranges, 2u);
    EXPECT_EQ(b->hello().range_count, 0u) << "it travels once, with its owner";
    EXPECT_EQ(memcmp(&a->hello().ipc_peers[0].name, &b->hello().ipc_name, 16), 0);
    const size_t before = FreeBytes();
    ASSERT_DONE(a->Close(kLong));
    ASSERT_DONE(b->Close(kLong));
    auto taken = a->ExportAll(kLong);
    auto nothing = b->ExportAll(kLong);
    ASSERT_DONE(taken);
    ASSERT_DONE(nothing);
    EXPECT_EQ(nothing->ranges.size(), 0u);
    // A new importer waits until the memory is back.
    ASSERT_DONE(a->Release(kUntilCommit, kLong));
    ASSERT_DONE(b->Release(kUntilCommit, kLong));
    ASSERT_DONE(a->Commit(kLong));
    ASSERT_DONE(b->Commit(kLong));
    for (Target* target : {&owner, &importer}) LockAndCheckpoint(*target);
    auto bytes = TakeAway(&*taken);
    EXPECT_GE(FreeBytes(), before + 60 * 1000 * 1000) << "the GPU is free";
    auto fds = PutBack(*taken, bytes);
    for (Target* target : {&owner, &importer}) RestoreAndUnlock(*target);
    // The importer is restored first and has to wait for its owner.
    ASSERT_DONE(b->Map({}, {}, kLong));
    auto early = b->Open(kLong);
    ASSERT_FALSE(early.has_value());
    EXPECT_NE(early.error().ToString().find("process " + std::to_string(owner.pid().value)),
              std::string::npos);
    ASSERT_DONE(a->Map(taken->ranges, Numbers(fds), kLong));
    fds.clear();
    ASSERT_DONE(b->Rejoin(kLong));
    ASSERT_DONE(a->Open(kLong));
    ASSERT_DONE(b->Open(kLong));
    EXPECT_EQ(importer.Ask("address " + theirs), address);
    EXPECT_EQ(importer.Ask("check " + theirs + " 1"), "right");
    EXPECT_EQ(importer.Ask("check " + theirs_too + " 2"), "right");
    ASSERT_EQ(importer.Ask("fill " + theirs + " 1"), "ok");
    EXPECT_EQ(owner.Ask("check " + mine + " 1"), "right");
    EXPECT_EQ(FreeBytes(), before) << "it is there once, not twice";
    EXPECT_EQ(owner.Ask("ipc-record 0"), "0");
    EXPECT_EQ(importer.Ask("ipc-wait 0"), "0");
  }
  // The old handle stays valid after a suspend.
  Target late({"direct"});
  EXPECT_EQ(late.Ask("check " + late.Ask("ipc-open " + handle) + " 1"), "right");
}

// A request for memory while its owner's gate is closed waits, outside of the importer's own gate.
TEST(Ipc, AnOpenWaitsForTheOwnersGate) {
  Target owner({"direct"}), importer({"direct"});
  const std::string mine = owner.Ask("alloc 3000000");
  owner.Ask("fill " + mine + " 1");
  const std::string handle = owner.Ask("ipc-get " + mine);
  auto a = owner.Connect();
  ASSERT_DONE(a);
  ASSERT_DONE(a->Close(kLong));
  importer.Say("ipc-open " + handle);
  auto b = importer.Connect();
  while (!b) b = importer.Connect();  // its agent starts with the call
  ASSERT_DONE(b->Close(kLong));
  ASSERT_DONE(a->Open(kLong));
  ASSERT_DONE(b->Open(kLong));
  EXPECT_EQ(importer.Hear(), "0");
  EXPECT_EQ(importer.Ask("check 0 1"), "right");
}

// The client of both dies while their memory is away. Each restores its own memory, the importer
// after its owner.
TEST(Ipc, ADeadClientIsRolledBack) {
  Target owner({"direct"}), importer({"direct"});
  const std::string mine = owner.Ask("alloc 3000000");
  owner.Ask("fill " + mine + " 1");
  const std::string theirs = importer.Ask("ipc-open " + owner.Ask("ipc-get " + mine));
  auto a = owner.Connect();
  ASSERT_DONE(a);
  {
    auto b = importer.Connect();
    ASSERT_DONE(b);
    ASSERT_DONE(a->Close(kLong));
    ASSERT_DONE(b->Close(kLong));
    ASSERT_DONE(a->Release(kUntilCommit, kLong));
    ASSERT_DONE(b->Release(kUntilCommit, kLong));
  }
  importer.Say("check " + theirs + " 1");
  { auto gone = std::move(*a); }
  EXPECT_EQ(importer.Hear(), "right");
  EXPECT_EQ(owner.Ask("check " + mine + " 1"), "right");
  a = owner.Connect();
  ASSERT_DONE(a);
  EXPECT_EQ(a->hello().ipc_peer_count, 1u) << "they know of each other";
}

// Programs that cannot ask the agent read this in the agent's header.
TEST(Ipc, TheHeaderSaysThatMemoryIsShared) {
  Target owner({"direct"}), importer({"direct"});
  const auto& shares = SaysItShares;
  const std::string mine = owner.Ask("alloc 3000000"), handle = owner.Ask("ipc-get " + mine);
  EXPECT_FALSE(shares(owner)) << "no other process has it open yet";
  for (const char* end : {"ipc-close ", "reset "}) {
    SCOPED_TRACE(end);
    const std::string theirs = importer.Ask("ipc-open " + handle);
    EXPECT_TRUE(shares(owner));
    EXPECT_TRUE(shares(importer));
    importer.Ask(end + theirs);
    EXPECT_FALSE(shares(importer));
    for (int i = 0; i < 60000 && shares(owner); ++i) usleep(1000);  // the owner is notified
    EXPECT_FALSE(shares(owner));
  }
}

// Only the owner is suspended. A process that opens the owner's memory waits until the memory is
// back, outside of its own gate.
TEST(Ipc, AnOpenWaitsForAnOwnerThatIsSuspended) {
  Target owner({"direct"}), importer({"direct"}), other({"direct"});
  const std::string mine = owner.Ask("alloc 3000000");
  owner.Ask("fill " + mine + " 1");
  const std::string handle = owner.Ask("ipc-get " + mine), event = owner.Ask("ipc-share-event");
  auto a = owner.Connect();
  ASSERT_DONE(a);
  ASSERT_DONE(a->Close(kLong));
  auto taken = a->ExportAll(kLong);
  ASSERT_DONE(taken);
  ASSERT_DONE(a->Release(kUntilCommit, kLong));
  ASSERT_DONE(a->Commit(kLong));
  auto bytes = TakeAway(&*taken);
  importer.Say("ipc-open " + handle);
  other.Say("ipc-open-event " + event);
  EXPECT_FALSE(importer.Speaks());
  EXPECT_FALSE(other.Speaks());
  auto b = importer.Connect();
  while (!b) b = importer.Connect();
  ASSERT_DONE(b->Close(kLong));
  auto fds = PutBack(*taken, bytes);
  ASSERT_DONE(a->Map(taken->ranges, Numbers(fds), kLong));
  ASSERT_DONE(a->Open(kLong));
  EXPECT_EQ(other.Hear(), "ok");
  ASSERT_DONE(b->Open(kLong));
  EXPECT_EQ(importer.Hear(), "0");
  EXPECT_EQ(importer.Ask("check 0 1"), "right");
}

// If the owner has died, there is nothing to wait for.
TEST(Ipc, AnOpenDoesNotWaitForAnOwnerThatHasEnded) {
  Target owner({"direct"}), importer({"direct"});
  const std::string handle = owner.Ask("ipc-get " + owner.Ask("alloc 3000000"));
  auto a = owner.Connect();
  ASSERT_DONE(a);
  ASSERT_DONE(a->Close(kLong));
  ASSERT_DONE(a->Release(kUntilCommit, kLong));
  importer.Say("ipc-open " + handle);
  EXPECT_FALSE(importer.Speaks());
  kill(owner.pid().value, SIGKILL);
  owner.Wait();
  EXPECT_EQ(importer.Hear(), kInvalidValue);
}

// An owner that cannot listen when its memory is back retries.
TEST(Ipc, AnOwnerListensAgainWhenItCan) {
  Target owner({"direct"}), importer({"direct"});
  const std::string handle = owner.Ask("ipc-share-event");
  {
    auto a = owner.Connect();
    ASSERT_DONE(a);
    ASSERT_DONE(a->Close(kLong, agent_client::AgentClient::Floor::kKeep));
    ASSERT_DONE(a->Release(kUntilCommit, kLong));
    NoDescriptors none(owner);
    { auto gone = std::move(*a); }
    EXPECT_EQ(owner.Ask("ipc-record 0"), "0") << "it runs on";
    importer.Say("ipc-open-event " + handle);
    EXPECT_FALSE(importer.Speaks());
  }
  EXPECT_EQ(importer.Hear(), "ok");
}

TEST(Ipc, AnOwnerWithoutDescriptorsLeavesTheQueueAlone) {
  Target owner({"direct"}), importer({"direct"});
  const std::string handle = owner.Ask("ipc-share-event");
  const auto threads = Threads(owner, "stasis-ipc");
  ASSERT_EQ(threads.size(), 1u);
  {
    NoDescriptors none(owner);
    importer.Say("ipc-open-event " + handle);
    const long before = ProcessorTime(threads[0]);
    for (int i = 0; i < 5; ++i) EXPECT_FALSE(importer.Speaks());
    EXPECT_LT(ProcessorTime(threads[0]) - before, 4) << "ticks, in half a second";
  }
  EXPECT_EQ(importer.Hear(), "ok");
}

// One thread waits for all events, however often one is queried.
TEST(Ipc, OneThreadServesAllWaitingImporters) {
  Target owner({"direct"}), importer({"direct"}), waiting({"direct"});
  const std::string handle = owner.Ask("ipc-share-event");
  ASSERT_EQ(importer.Ask("ipc-open-event " + handle), "ok");
  ASSERT_EQ(waiting.Ask("ipc-open-event " + handle), "ok");
  ASSERT_EQ(owner.Ask("stuck"), "ok");
  ASSERT_EQ(owner.Ask("ipc-record 0"), "0");
  waiting.Say("ipc-sync 0");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(importer.Ask("ipc-query 0"), "600");
  EXPECT_FALSE(waiting.Speaks());
  EXPECT_EQ(Threads(owner, "stasis-ipc-wait").size(), 1u);
  EXPECT_EQ(owner.Ask("fork"), "0") << "a child has nothing of it";
  ASSERT_EQ(owner.Ask("unstuck"), "ok");
  EXPECT_EQ(waiting.Hear(), "0");
  EXPECT_EQ(importer.Ask("ipc-query 0"), "0");
}

// A query of an event does not disturb a capture of the program.
TEST(Ipc, WaitingForAnEventDoesNotDisturbCaptures) {
  Target owner({"direct"}), importer({"direct"});
  ASSERT_EQ(importer.Ask("ipc-open-event " + owner.Ask("ipc-share-event")), "ok");
  ASSERT_EQ(owner.Ask("stuck"), "ok");
  ASSERT_EQ(owner.Ask("ipc-record 0"), "0");
  ASSERT_EQ(owner.Ask("capture"), "ok");
  EXPECT_EQ(importer.Ask("ipc-query 0"), "600");
  EXPECT_EQ(owner.Ask("end-capture"), "0");
  ASSERT_EQ(owner.Ask("unstuck"), "ok");
  EXPECT_EQ(importer.Ask("ipc-sync 0"), "0");
}

// An event that cannot be queried must not count as reached: the program would read data too early.
TEST(Ipc, AnEventThatCannotBeQueriedIsNotReached) {
  constexpr const char* kUnknown = "999";
  Target owner({"direct"}), importer({"direct"});
  ASSERT_EQ(importer.Ask("ipc-open-event " + owner.Ask("ipc-share-event")), "ok");
  ASSERT_EQ(owner.Ask("ipc-record 0"), "0");
  EXPECT_EQ(importer.Ask("ipc-sync 0"), "0");
  for (const char* verb : {"ipc-sync 0", "ipc-query 0"}) {
    {
      Fault fault(owner, "cuEventQuery=fail(999)");
      EXPECT_EQ(importer.Ask(verb), kUnknown) << "its owner's driver does not know";
    }
    {
      NoDescriptors none(importer);
      EXPECT_EQ(importer.Ask(verb), kUnknown) << "its owner cannot be reached";
    }
    EXPECT_EQ(importer.Ask(verb), "0");
  }
}

TEST(Ipc, EventsEndWithTheirContext) {
  Target owner({"direct"}), importer({"direct"}), plain({"direct"}, /*agent=*/false);
  const std::string handle = owner.Ask("ipc-share-event");
  ASSERT_EQ(importer.Ask("ipc-open-event " + handle), "ok");
  ASSERT_EQ(importer.Ask("ipc-open-event " + plain.Ask("ipc-share-event")), "ok");
  ASSERT_EQ(owner.Ask("reset"), "ok");
  EXPECT_EQ(Target({"direct"}).Ask("ipc-open-event " + handle), kInvalidValue);
  EXPECT_EQ(importer.Ask("ipc-query 0"), "0") << "nothing is left of what it recorded";
  ASSERT_EQ(importer.Ask("reset"), "ok");
  auto client = importer.Connect();
  ASSERT_DONE(client);
  EXPECT_EQ(client->hello().blockers, 0u);
}

}  // namespace
}  // namespace stasis::agent_test
