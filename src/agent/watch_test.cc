// The watcher's connection, and the allocations that wait for it, without a driver. The test itself
// is the control thread.
#include "agent/watch.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "agent/control.h"
#include "agent/futex.h"
#include "agent/gate.h"
#include "agent/requests.h"
#include "agent/room.h"
#include "agent_protocol/packet.h"

namespace stasis::agent {

namespace {
std::atomic<bool> memory_is_away{false};
std::atomic<uint32_t> wakes{0};
}  // namespace

bool MemoryIsAway() { return memory_is_away.load(); }
void WakeControl() {
  wakes.fetch_add(1);
  FutexWake(&wakes);
}

namespace {

using agent_protocol::Io;
using agent_protocol::Type;
using agent_protocol::Wants;

int64_t In(int64_t ms) { return NowNs() + ms * 1000000; }

constexpr room::Request kRequest{2 << 20, {{7}}};

class Watcher {
 public:
  explicit Watcher(uint32_t longest_wait_ms = 20000) {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    socket_ = ends[0];
    agent_protocol::WatchRequest request{};
    request.longest_wait_ms = longest_wait_ms;
    Send(&request, Type::kWatch, sizeof(request));
    EXPECT_TRUE(IsWatcher(ends[1]));
    AdmitWatcher(ends[1]);
    HearWatcher();
  }
  ~Watcher() {
    close(socket_);
    // Let the agent handle this and all that was sent before.
    while (WatcherSocket() >= 0) HearWatcher();
  }
  Watcher(const Watcher&) = delete;

  void Send(void* packet, Type type, size_t size) const {
    ASSERT_EQ(agent_protocol::Send(socket_, packet, type, size, nullptr, 0, 0), Io::kOk);
  }
  void Say(Type type) const {
    agent_protocol::Header header;
    Send(&header, type, sizeof(header));
  }
  void Answer(uint64_t number, bool try_again) const {
    agent_protocol::RoomAnswer answer{};
    answer.number = number;
    answer.try_again = try_again ? 1 : 0;
    Send(&answer, Type::kRoom, sizeof(answer));
    while (agent_protocol::FirstType(WatcherSocket()) != Type{}) HearWatcher();
  }

  Io Receive() {
    int fds[agent_protocol::kMaxBatch];
    uint32_t count = 0;
    return agent_protocol::Receive(socket_, &packet_, fds, &count, 0);
  }
  const agent_protocol::Packet& packet() const { return packet_; }
  // Does the control thread's part until the agent says something. Only NoteNews wakes it.
  Wants Next() {
    for (const int64_t deadline = In(20000);;) {
      const uint32_t seen = wakes.load();
      TellWatcher();
      if (Receive() == Io::kOk) break;
      if (NowNs() > deadline) {
        ADD_FAILURE() << "the watcher was told nothing";
        return {};
      }
      FutexWait(&wakes, seen, 1'000'000'000);
    }
    EXPECT_EQ(packet_.header.type, Type::kWants);
    return packet_.wants;
  }
  bool IsToldNothing() {
    TellWatcher();
    return Receive() == Io::kTimeout;
  }

 private:
  int socket_ = -1;
  agent_protocol::Packet packet_;
};

// A call of the program that allocates. Each try takes one of `free` pieces of memory.
class Allocation {
 public:
  explicit Allocation(std::atomic<int>& free) {
    thread_ = std::thread([this, &free] {
      gate::Pass inside;
      room::Wait wait;
      for (;;) {
        const uint32_t frees = room::Frees();
        ++tries;
        int left = free.load();
        while (left > 0 && !free.compare_exchange_weak(left, left - 1)) {
        }
        succeeded = left > 0;
        if (succeeded || !wait.Await(kRequest, frees)) break;
      }
      ended = true;
    });
  }
  ~Allocation() { thread_.join(); }
  bool Succeeds() {
    if (thread_.joinable()) thread_.join();
    thread_ = std::thread([] {});
    return succeeded;
  }

  std::atomic<int> tries{0};
  std::atomic<bool> succeeded{false}, ended{false};

 private:
  std::thread thread_;
};

// The first test: no watcher has set it yet.
TEST(Room, ASixteenthIsLeftFreeUntilTheFirstWatcherComes) {
  EXPECT_EQ(room::SpareBytes(160 << 20), 10u << 20);
}

TEST(Watcher, IsToldAtOnceAndThenOnlyWhatChanges) {
  Watcher watcher;
  const Wants first = watcher.Next();
  EXPECT_EQ(first.thread_at_gate, 0u);
  EXPECT_EQ(first.number, 0u);
  { gate::Pass call; }
  EXPECT_TRUE(watcher.IsToldNothing()) << "a call changes nothing";
  watcher.Say(Type::kAskUse);
  HearWatcher();
  EXPECT_EQ(watcher.Next().calls, first.calls + 1);
  EXPECT_TRUE(watcher.IsToldNothing());
}

TEST(Watcher, IsToldOfAThreadAtTheGateOfASuspendedProgram) {
  Watcher watcher;
  watcher.Next();
  ASSERT_EQ(gate::Close(In(20000)), gate::Closing::kClosed);
  std::thread thread([] { gate::Pass call; });
  const int64_t deadline = In(20000);
  while (!gate::HasBlockedThread() && NowNs() < deadline) std::this_thread::yield();
  EXPECT_TRUE(watcher.IsToldNothing()) << "its memory is not away yet";
  memory_is_away = true;
  EXPECT_EQ(watcher.Next().thread_at_gate, 1u);
  memory_is_away = false;
  gate::Open();
  EXPECT_EQ(watcher.Next().thread_at_gate, 0u);
  thread.join();
}

TEST(Watcher, IsWokenByAThreadThatReachesTheGate) {
  ASSERT_EQ(gate::Close(In(20000)), gate::Closing::kClosed);
  memory_is_away = true;
  Watcher watcher;
  EXPECT_EQ(watcher.Next().thread_at_gate, 0u);
  const uint32_t before = wakes.load();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([] { gate::Pass call; });
  EXPECT_EQ(watcher.Next().thread_at_gate, 1u);
  EXPECT_GE(wakes.load(), before + 1);
  memory_is_away = false;
  gate::Open();
  for (std::thread& thread : threads) thread.join();
}

TEST(Watcher, NobodyIsWokenWithoutOne) {
  const uint32_t before = wakes.load();
  ASSERT_EQ(gate::Close(In(20000)), gate::Closing::kClosed);
  memory_is_away = true;
  std::thread thread([] { gate::Pass call; });
  const int64_t deadline = In(20000);
  while (!gate::HasBlockedThread() && NowNs() < deadline) std::this_thread::yield();
  memory_is_away = false;
  gate::Open();
  thread.join();
  EXPECT_EQ(wakes.load(), before);
  EXPECT_LT(WatcherSocket(), 0);
}

TEST(Watcher, ASecondOneIsRejectedAndTheFirstStays) {
  Watcher first;
  first.Next();
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  AdmitWatcher(ends[1]);
  agent_protocol::Packet packet;
  int fds[agent_protocol::kMaxBatch];
  uint32_t count = 0;
  ASSERT_EQ(agent_protocol::Receive(ends[0], &packet, fds, &count, 0), Io::kOk);
  EXPECT_EQ(packet.header.type, Type::kReply);
  EXPECT_EQ(packet.reply.outcome, agent_protocol::Outcome::kBusy);
  close(ends[0]);
  first.Say(Type::kAskUse);
  HearWatcher();
  first.Next();
}

TEST(Watcher, AnInvalidPacketEndsTheConnection) {
  for (Type type : {Type::kHello, Type::kReply}) {
    Watcher watcher;
    watcher.Next();
    agent_protocol::Reply reply{};
    watcher.Send(&reply, type,
                 type == Type::kReply ? sizeof(reply) : sizeof(agent_protocol::Header));
    HearWatcher();
    EXPECT_LT(WatcherSocket(), 0);
    while (watcher.Receive() == Io::kOk) {
    }
    EXPECT_EQ(watcher.Receive(), Io::kEnd);
  }
}

// A watcher that reads nothing must block neither the control thread nor the program.
TEST(Watcher, OneThatDoesNotReadIsToldLater) {
  Watcher watcher;
  uint32_t asked = 0;
  while ((WatcherEvents() & POLLOUT) == 0) {
    ASSERT_LT(++asked, 100000u);
    watcher.Say(Type::kAskUse);
    HearWatcher();
    TellWatcher();
  }
  uint32_t told = 0;
  for (; watcher.Receive() == Io::kOk; ++told) EXPECT_EQ(watcher.packet().wants.thread_at_gate, 0u);
  EXPECT_GT(told, 0u);
  ASSERT_EQ(gate::Close(In(20000)), gate::Closing::kClosed);
  memory_is_away = true;
  std::thread thread([] { gate::Pass call; });
  const int64_t deadline = In(20000);
  while (!gate::HasBlockedThread() && NowNs() < deadline) std::this_thread::yield();
  HearWatcher();  // the socket has room again
  EXPECT_EQ(watcher.Next().thread_at_gate, 1u);
  memory_is_away = false;
  gate::Open();
  thread.join();
}

TEST(Room, AnAllocationFailsAtOnceWithoutAWatcher) {
  std::atomic<int> free{0};
  Allocation allocation(free);
  EXPECT_FALSE(allocation.Succeeds());
  EXPECT_EQ(allocation.tries, 1);
}

TEST(Room, AnAllocationWaitsUntilRoomIsMade) {
  Watcher watcher;
  watcher.Next();
  std::atomic<int> free{0};
  Allocation allocation(free);
  const Wants wants = watcher.Next();
  EXPECT_NE(wants.number, 0u);
  EXPECT_EQ(wants.bytes, kRequest.bytes);
  EXPECT_EQ(wants.device.bytes[0], 7);
  EXPECT_EQ(wants.attempts, 0u);
  watcher.Answer(wants.number + 100, true);  // a number that does not wait
  EXPECT_TRUE(watcher.IsToldNothing());
  EXPECT_FALSE(allocation.ended);
  // Another program has taken the room.
  watcher.Answer(wants.number, true);
  Wants again = watcher.Next();
  if (again.number == 0) again = watcher.Next();
  EXPECT_GT(again.number, wants.number);
  EXPECT_EQ(again.attempts, 1u);
  watcher.Answer(wants.number, false);  // a late answer to the earlier number
  free = 1;
  watcher.Answer(again.number, true);
  EXPECT_TRUE(allocation.Succeeds());
  EXPECT_EQ(allocation.tries, 3);
  EXPECT_EQ(watcher.Next().number, 0u);
}

TEST(Room, AnAllocationFailsWhenTheWatcherSaysSo) {
  Watcher watcher;
  watcher.Next();
  std::atomic<int> free{0};
  Allocation allocation(free);
  watcher.Answer(watcher.Next().number, false);
  EXPECT_FALSE(allocation.Succeeds());
  EXPECT_EQ(allocation.tries, 1);
  EXPECT_EQ(watcher.Next().number, 0u);
}

TEST(Room, AllThatWaitFailWhenTheWatcherDisconnects) {
  std::atomic<int> free{0};
  auto watcher = std::make_unique<Watcher>();
  watcher->Next();
  Allocation one(free);
  watcher->Next();
  Allocation two(free);
  watcher.reset();
  EXPECT_FALSE(one.Succeeds());
  EXPECT_FALSE(two.Succeeds());
  room::Waiting waiting;
  EXPECT_FALSE(room::First(&waiting));
}

// A checkpoint disconnects the watcher for a while.
TEST(Room, AnAllocationWaitsForTheNextWatcher) {
  auto watcher = std::make_unique<Watcher>();
  watcher->Next();
  std::atomic<int> free{0};
  Allocation before(free);
  const Wants wants = watcher->Next();
  watcher->Say(Type::kLeave);
  watcher.reset();
  EXPECT_FALSE(before.ended);
  std::atomic<int> none{0};
  Allocation meanwhile(none);
  while (meanwhile.tries == 0) std::this_thread::yield();
  watcher = std::make_unique<Watcher>();
  EXPECT_EQ(watcher->Next().number, wants.number) << "it keeps its number";
  EXPECT_FALSE(meanwhile.ended);
  free = 1;
  watcher->Answer(wants.number, true);
  EXPECT_TRUE(before.Succeeds());
  Wants next = watcher->Next();
  if (next.number == 0) next = watcher->Next();
  watcher.reset();
  EXPECT_FALSE(meanwhile.Succeeds()) << "this watcher has not said that it returns";
}

TEST(Room, AnAllocationFailsIfNoAnswerComes) {
  Watcher watcher(/*longest_wait_ms=*/1);
  watcher.Next();
  std::atomic<int> free{0};
  Allocation allocation(free);
  EXPECT_FALSE(allocation.Succeeds());
  EXPECT_EQ(allocation.tries, 1);
}

TEST(Room, TheBoundCountsAllTriesOfAnAllocation) {
  auto watcher = std::make_unique<Watcher>();
  watcher->Next();
  std::atomic<int> free{0};
  Allocation allocation(free);
  const Wants wants = watcher->Next();
  agent_protocol::WatchRequest request{};
  request.longest_wait_ms = 1;
  watcher->Send(&request, Type::kWatch, sizeof(request));
  watcher->Answer(wants.number, true);
  EXPECT_FALSE(allocation.Succeeds());
}

TEST(Room, AllocationsFailAtOnceIfTheNextWatcherDoesNotCome) {
  std::atomic<int> free{0};
  {
    Watcher watcher(/*longest_wait_ms=*/1);
    watcher.Next();
    watcher.Say(Type::kLeave);
  }
  Allocation first(free);
  EXPECT_FALSE(first.Succeeds());
  EXPECT_FALSE(room::IsServed());
}

TEST(Room, TheOneThatHasWaitedLongestIsTold) {
  Watcher watcher;
  watcher.Next();
  std::atomic<int> free{0};
  Allocation first(free);
  const Wants wants = watcher.Next();
  Allocation second(free);
  const int64_t deadline = In(20000);
  while (second.tries == 0 && NowNs() < deadline) std::this_thread::yield();
  EXPECT_TRUE(watcher.IsToldNothing());
  watcher.Answer(wants.number, false);
  EXPECT_FALSE(first.Succeeds());
  Wants next = watcher.Next();
  if (next.number == 0) next = watcher.Next();  // the second had not entered the table yet
  EXPECT_GT(next.number, wants.number);
  free = 1;
  watcher.Answer(next.number, true);
  EXPECT_TRUE(second.Succeeds());
}

// The program itself may free memory while one of its threads waits.
TEST(Room, AnAllocationIsTriedAgainAfterAFree) {
  Watcher watcher;
  watcher.Next();
  std::atomic<int> free{0};
  Allocation allocation(free);
  const Wants wants = watcher.Next();
  room::NoteFree();  // too little
  const int64_t deadline = In(20000);
  while (allocation.tries < 2 && NowNs() < deadline) std::this_thread::yield();
  EXPECT_TRUE(watcher.IsToldNothing()) << "it keeps its number";
  free = 1;
  room::NoteFree();
  EXPECT_TRUE(allocation.Succeeds());
  EXPECT_NE(watcher.Next().number, wants.number);
}

TEST(Room, AWaitingAllocationIsOutsideOfTheGate) {
  Watcher watcher;
  watcher.Next();
  std::atomic<int> free{0};
  Allocation allocation(free);
  const Wants wants = watcher.Next();
  ASSERT_EQ(gate::Close(In(20000)), gate::Closing::kClosed);
  memory_is_away = true;
  EXPECT_TRUE(watcher.IsToldNothing());
  free = 1;
  watcher.Answer(wants.number, true);
  Wants next = watcher.Next();
  for (int i = 0; next.thread_at_gate == 0 && i < 3; ++i) next = watcher.Next();
  EXPECT_EQ(next.thread_at_gate, 1u) << "it cannot be tried before a resume";
  EXPECT_EQ(next.number, 0u);
  EXPECT_EQ(allocation.tries, 1);
  memory_is_away = false;
  gate::Open();
  EXPECT_TRUE(allocation.Succeeds());
}

// The driver may hold locks.
TEST(Room, ACallWithinACallDoesNotWait) {
  Watcher watcher;
  watcher.Next();
  gate::Pass outer;
  gate::Pass inner;
  room::Wait wait;
  EXPECT_FALSE(wait.Await(kRequest, room::Frees()));
}

TEST(Room, AForkedChildHasNoWatcherAndNothingThatWaits) {
  Watcher watcher;
  watcher.Next();
  std::atomic<int> free{0};
  Allocation allocation(free);
  const Wants wants = watcher.Next();
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    const int socket = WatcherSocket();
    gate::ResetAfterFork();
    ResetWatcher();
    room::Waiting waiting;
    if (room::First(&waiting) || room::IsServed()) ::_exit(1);
    if (WatcherSocket() >= 0 || ::close(socket) == 0) ::_exit(2);
    gate::Pass inside;
    room::Wait wait;
    ::_exit(wait.Await(kRequest, room::Frees()) ? 3 : 0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(watcher.IsToldNothing()) << "the parent's allocation still waits";
  free = 1;
  watcher.Answer(wants.number, true);
  EXPECT_TRUE(allocation.Succeeds());
}

// Many threads at once, with a watcher that always makes room for one.
TEST(Room, ManyAllocationsAreServedOneByOne) {
  Watcher watcher;
  watcher.Next();
  std::atomic<int> free{0};
  std::vector<std::unique_ptr<Allocation>> all;
  for (int i = 0; i < 16; ++i) all.push_back(std::make_unique<Allocation>(free));
  const auto have_ended = [&] {
    return std::all_of(all.begin(), all.end(), [](const auto& one) { return one->ended.load(); });
  };
  for (const int64_t deadline = In(20000); !have_ended() && NowNs() < deadline;) {
    const uint32_t seen = wakes.load();
    TellWatcher();
    if (watcher.Receive() != Io::kOk) {
      FutexWait(&wakes, seen, 10'000'000);
    } else if (const uint64_t number = watcher.packet().wants.number; number != 0) {
      free = 1;
      watcher.Answer(number, true);
    }
  }
  EXPECT_TRUE(have_ended());
  for (auto& one : all) EXPECT_TRUE(one->Succeeds());
}

}  // namespace
}  // namespace stasis::agent
