#include "agent/gate.h"

#include <errno.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <thread>
#include <vector>

#include "agent/blockers.h"
#include "agent/futex.h"

namespace stasis::agent {
namespace {

int64_t In(int64_t ms) { return NowNs() + ms * 1000000; }

// While the gate is closed, the thread that closed it may write the shared data without a lock.
TEST(Gate, NoCallIsInsideWhileItIsClosed) {
  constexpr int kThreads = 16;
  uint64_t plain = 0;  // written by threads inside (by one at a time) and by the closer
  Mutex mutex;
  std::atomic<bool> end{false};
  std::atomic<uint64_t> passes{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      while (!end.load()) {
        gate::Pass inside;
        gate::Pass again;  // a nested call
        Lock lock(mutex);
        ++plain;
        passes.fetch_add(1);
      }
    });
  }
  for (int round = 0; round < 200; ++round) {
    ASSERT_EQ(gate::Close(In(20000)), gate::Closing::kClosed);
    uint64_t seen = plain;
    uint64_t counted = passes.load();
    std::this_thread::yield();
    ++plain;
    EXPECT_EQ(plain, seen + 1);
    EXPECT_EQ(passes.load(), counted);
    --plain;
    gate::Open();
  }
  end.store(true);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(plain, passes.load());
}

// Only the gate orders these threads and the closer, which checks in each round that no thread is
// inside. Each announcement follows stores that miss the caches, like a driver's, so that without a
// barrier it would become visible late.
void HammerWithoutLocks(int rounds) {
  constexpr int kThreads = 4;
  struct alignas(64) Mine {
    std::atomic<uint64_t> inside{0};
    uint64_t plain = 0;
  };
  std::array<Mine, kThreads> all;
  std::atomic<bool> end{false};
  std::vector<std::thread> threads;
  for (Mine& mine : all) {
    threads.emplace_back([&] {
      std::vector<char> cold(32 << 20);
      size_t at = 0;
      while (!end.load(std::memory_order_relaxed)) {
        for (int i = 0; i < 8; ++i) {
          at = (at + 4096 + 64) % cold.size();
          *static_cast<volatile char*>(&cold[at]) = 1;
        }
        gate::Pass inside;
        mine.inside.store(1, std::memory_order_relaxed);
        ++mine.plain;
        mine.inside.store(0, std::memory_order_relaxed);
      }
    });
  }
  uint64_t found = 0;
  for (int round = 0; round < rounds; ++round) {
    ASSERT_EQ(gate::Close(In(20000)), gate::Closing::kClosed);
    uint64_t before = 0, after = 0;
    for (const Mine& mine : all) before += mine.plain;
    for (int look = 0; look < 100; ++look) {
      for (const Mine& mine : all) found += mine.inside.load(std::memory_order_relaxed);
    }
    for (const Mine& mine : all) after += mine.plain;
    found += after - before;
    gate::Open();
  }
  end.store(true);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(found, 0);
}

#ifdef STASIS_SANITIZED
constexpr int kRounds = 5000;
#else
constexpr int kRounds = 100000;
#endif

TEST(Gate, ClosesWithoutOtherSynchronization) { HammerWithoutLocks(kRounds); }

// Makes membarrier fail, like a container's seccomp filter.
void LoseSystemCall(unsigned number, unsigned error) {
  sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog program{sizeof(rules) / sizeof(rules[0]), rules};
  ASSERT_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

void LoseMembarrier() { LoseSystemCall(SYS_membarrier, ENOSYS); }

[[noreturn]] void ExitByResult() { _exit(testing::Test::HasFailure() ? 1 : 0); }

// Runs in a new process, because a process decides only once how its gate works.
TEST(GateDeathTest, ClosesWithoutMembarrier) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  auto run = [] {
    LoseMembarrier();
    HammerWithoutLocks(kRounds);
    EXPECT_NE(gate::g_word.load() & gate::kFence, 0);
    ExitByResult();
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(0), "");
}

TEST(GateDeathTest, StaysOpenIfMembarrierFailsLater) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  auto run = [] {
    { gate::Pass inside; }
    LoseMembarrier();
    EXPECT_EQ(gate::Close(In(20000)), gate::Closing::kNoBarrier);
    EXPECT_FALSE(gate::IsClosed());
    { gate::Pass inside; }
    ExitByResult();
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(0), "");
}

// A thread without a slot cannot announce its calls, so a close cannot wait for them.
TEST(GateDeathTest, AThreadWithoutMemoryForASlotIsABlocker) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  auto run = [] {
    LoseSystemCall(SYS_mmap, ENOMEM);
    char text[200];
    EXPECT_EQ(Blockers(text, sizeof(text)), 0u);
    { gate::Pass inside; }
    EXPECT_EQ(Blockers(text, sizeof(text)), uint32_t(agent_protocol::kBlockerUnseenThread)) << text;
    ExitByResult();
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(0), "");
}

// A forked child forgets its parent's blockers, but its thread still has no slot.
TEST(GateDeathTest, AForkedChildWithoutASlotHasTheBlockerToo) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  auto run = [] {
    LoseSystemCall(SYS_mmap, ENOMEM);
    { gate::Pass inside; }
    const pid_t child = ::fork();
    if (child == 0) {
      char text[200];
      ResetBlockers();
      gate::ResetAfterFork();
      { gate::Pass inside; }
      ::_exit(Blockers(text, sizeof(text)) == uint32_t(agent_protocol::kBlockerUnseenThread) ? 0
                                                                                             : 1);
    }
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    ExitByResult();
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(0), "");
}

// A thread that waits for work may depend on a thread that is blocked at the gate.
TEST(Gate, ClosesDespiteAskingCallsAndSealsAfterThem) {
  std::atomic<bool> parked{false}, leave{false}, asked{false};
  std::thread waits([&] {
    gate::Ask asking;
    parked.store(true);
    parked.notify_one();
    leave.wait(false);
  });
  parked.wait(false);
  ASSERT_EQ(gate::Close(In(20000)), gate::Closing::kClosed);
  { gate::Ask asking; }  // still passes
  EXPECT_EQ(gate::Seal(In(50)), gate::Closing::kDeadline);
  EXPECT_TRUE(gate::IsClosed());
  gate::Open();

  ASSERT_EQ(gate::Close(In(20000)), gate::Closing::kClosed);
  leave.store(true);
  leave.notify_one();
  ASSERT_EQ(gate::Seal(In(20000)), gate::Closing::kClosed);
  waits.join();
  std::thread comes([&] {
    gate::Ask asking;
    asked.store(true);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(asked.load());
  gate::Open();
  comes.join();
  EXPECT_TRUE(asked.load());
}

TEST(Gate, StaysShutAtTheDeadline) {
  std::atomic<bool> inside{false}, end{false};
  std::thread thread([&] {
    gate::Pass pass;
    inside.store(true);
    while (!end.load()) std::this_thread::yield();
  });
  while (!inside.load()) std::this_thread::yield();
  EXPECT_EQ(gate::Close(In(50)), gate::Closing::kDeadline);
  EXPECT_TRUE(gate::IsClosed());
  end.store(true);
  thread.join();
  EXPECT_EQ(gate::Close(In(20000)), gate::Closing::kClosed);
  gate::Open();
}

// Exactly the allowed number of calls passes, from any threads.
TEST(Gate, LetsTheAllowedCallsThroughAndStaysShut) {
  constexpr int kThreads = 4;
  std::atomic<bool> end{false};
  std::atomic<uint32_t> passes{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      while (!end.load()) {
        gate::Pass pass;
        passes.fetch_add(1);
      }
    });
  }
  for (uint32_t calls : {1u, 2u, 7u, 500u}) {
    ASSERT_EQ(gate::Close(In(20000)), gate::Closing::kClosed);
    const uint32_t before = passes.load();
    for (int again = 1; again <= 20; ++again) {
      EXPECT_EQ(gate::LetThrough(calls, In(20000)), calls);
      ASSERT_EQ(gate::Close(In(20000)), gate::Closing::kClosed);
      EXPECT_EQ(passes.load(), before + again * calls);
    }
    gate::Open();
  }
  end.store(true);
  for (std::thread& thread : threads) thread.join();
}

TEST(Gate, UnusedTicketsExpire) {
  ASSERT_EQ(gate::Close(In(20000)), gate::Closing::kClosed);
  EXPECT_EQ(gate::LetThrough(3, In(20)), 0u);
  std::atomic<bool> passed{false};
  std::thread thread([&] {
    gate::Pass pass;
    passed.store(true);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(passed.load());
  EXPECT_EQ(gate::LetThrough(3, In(2000)), 1u);
  thread.join();
  gate::Open();
}

// A forked child does not inherit tickets (calls that may still pass a closed gate). Its gate is
// open, and after the child closes it, no call passes.
TEST(Gate, AForkedChildInheritsNoTickets) {
  ASSERT_EQ(gate::Close(In(20000)), gate::Closing::kClosed);
  std::atomic<bool> done{false};
  std::thread step([&] {
    gate::LetThrough(3, In(1000));
    done.store(true);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    gate::ResetAfterFork();
    if (gate::IsClosed()) ::_exit(1);
    { gate::Pass pass; }
    if (gate::Close(In(5000)) != gate::Closing::kClosed) ::_exit(2);
    // ThreadSanitizer allows no threads after fork, so a timer kills a child that blocks at the
    // gate.
    const itimerval soon{{0, 0}, {0, 100000}};
    ::setitimer(ITIMER_REAL, &soon, nullptr);
    { gate::Pass pass; }
    ::_exit(3);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) << status;
  EXPECT_FALSE(done.load()) << "the step was over before the child looked";
  step.join();
  gate::Open();
}

// A sealed gate blocks asking calls, except while calls are let through.
TEST(Gate, AskingCallsPassWhileCallsAreLetThrough) {
  ASSERT_EQ(gate::Close(In(20000)), gate::Closing::kClosed);
  ASSERT_EQ(gate::Seal(In(20000)), gate::Closing::kClosed);
  std::thread asks([] { gate::Ask asking; });
  EXPECT_EQ(gate::LetThrough(1, In(20)), 0u);
  asks.join();
  gate::Open();
}

TEST(Gate, ReportsThreadsOfTheProgramThatWaitAtTheClosedGate) {
  EXPECT_FALSE(gate::HasBlockedThread());
  for (bool background : {false, true}) {
    ASSERT_EQ(gate::Close(In(20000)), gate::Closing::kClosed);
    std::atomic<bool> passed{false};
    std::thread waits([&] {
      if (background) gate::MarkBackground();
      gate::Pass pass;
      passed.store(true);
    });
    const int64_t deadline = In(background ? 50 : 20000);
    while (!gate::HasBlockedThread() && NowNs() < deadline) std::this_thread::yield();
    EXPECT_EQ(gate::HasBlockedThread(), !background);
    EXPECT_FALSE(passed.load());
    gate::Open();
    waits.join();
    EXPECT_FALSE(gate::HasBlockedThread());
  }
}

// A thread that leaves a call for a while is reported when it cannot return.
TEST(Gate, ReportsAThreadThatCannotReturnFromOutside) {
  std::atomic<bool> left{false}, back{false};
  std::thread thread([&] {
    gate::Pass pass;
    gate::Outside outside;
    EXPECT_TRUE(outside.left());
    EXPECT_FALSE(gate::Outside().left()) << "it has left already";
    left.store(true);
    left.notify_one();
    back.wait(false);
  });
  left.wait(false);
  EXPECT_FALSE(gate::UseNow().in_call);
  ASSERT_EQ(gate::Close(In(20000)), gate::Closing::kClosed);
  EXPECT_FALSE(gate::HasBlockedThread());
  back.store(true);
  back.notify_one();
  const int64_t deadline = In(20000);
  while (!gate::HasBlockedThread() && NowNs() < deadline) std::this_thread::yield();
  EXPECT_TRUE(gate::HasBlockedThread());
  gate::Open();
  thread.join();
}

TEST(Gate, CountsCallsOfAllThreadsAndSeesThoseInside) {
  const uint64_t before = gate::UseNow().calls;
  EXPECT_FALSE(gate::UseNow().in_call);
  {
    gate::Pass pass;
    gate::Pass nested;
    EXPECT_TRUE(gate::UseNow().in_call);
  }
  {
    gate::Ask asking;
    EXPECT_TRUE(gate::UseNow().in_call);
  }
  std::thread([] {
    for (int i = 0; i < 10; ++i) gate::Pass pass;
  }).join();
  EXPECT_EQ(gate::UseNow().calls, before + 12);
  EXPECT_FALSE(gate::UseNow().in_call);
}

TEST(Gate, AnExemptThreadNeverWaits) {
  ASSERT_EQ(gate::Close(In(20000)), gate::Closing::kClosed);
  std::thread([] {
    gate::Exempt exempt;
    gate::Pass pass;
  }).join();
  gate::Open();
}

// Runs more threads than one block of slots holds: first one round after another, then all at once.
TEST(Gate, ManyThreads) {
  for (int round = 0; round < 3; ++round) {
    std::vector<std::thread> threads;
    for (int i = 0; i < 100; ++i) threads.emplace_back([] { gate::Pass pass; });
    ASSERT_EQ(gate::Close(In(20000)), gate::Closing::kClosed);
    gate::Open();
    for (std::thread& thread : threads) thread.join();
  }
}

}  // namespace
}  // namespace stasis::agent
