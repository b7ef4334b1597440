#include "agent/gate.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "agent/futex.h"

namespace stasis::agent {
namespace {

int64_t In(int64_t ms) { return NowNs() + ms * 1000000; }

// While the gate is closed, what its holder writes without any lock is nobody else's.
TEST(Gate, NobodyIsInsideWhileItIsClosed) {
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
        gate::Pass again;  // a call that comes back to us
        Lock lock(mutex);
        ++plain;
        passes.fetch_add(1);
      }
    });
  }
  for (int round = 0; round < 200; ++round) {
    ASSERT_TRUE(gate::Close(In(20000)));
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

TEST(Gate, ReopensAtTheDeadline) {
  std::atomic<bool> inside{false}, end{false};
  std::thread thread([&] {
    gate::Pass pass;
    inside.store(true);
    while (!end.load()) std::this_thread::yield();
  });
  while (!inside.load()) std::this_thread::yield();
  EXPECT_FALSE(gate::Close(In(50)));
  EXPECT_FALSE(gate::IsClosed());
  end.store(true);
  thread.join();
  EXPECT_TRUE(gate::Close(In(20000)));
  gate::Open();
}

TEST(Gate, AnExemptThreadNeverWaits) {
  ASSERT_TRUE(gate::Close(In(20000)));
  std::thread([] {
    gate::t_thread.exempt = 1;
    gate::Pass pass;
  }).join();
  gate::Open();
}

// More threads than one block of slots holds, one after another and at once.
TEST(Gate, ManyThreads) {
  for (int round = 0; round < 3; ++round) {
    std::vector<std::thread> threads;
    for (int i = 0; i < 100; ++i) threads.emplace_back([] { gate::Pass pass; });
    ASSERT_TRUE(gate::Close(In(20000)));
    gate::Open();
    for (std::thread& thread : threads) thread.join();
  }
}

}  // namespace
}  // namespace stasis::agent
