#include "agent/descriptors.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <thread>
#include <vector>

namespace stasis::agent {
namespace {

// The agent's threads call Take under different locks, so it must be thread-safe. ThreadSanitizer
// checks this.
TEST(Descriptors, ThreadsTakeSocketsConcurrently) {
  constexpr int kThreads = 4, kRounds = 50;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([] {
      for (int round = 0; round < kRounds; ++round) {
        int ends[2];
        ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
        Watched one, other;
        one.Take(ends[0]);
        other.Take(ends[1]);
        EXPECT_TRUE(one.Connected() && other.Connected());
        one.Close();
        other.Close();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace stasis::agent
