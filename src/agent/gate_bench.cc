// What a call pays for the gate, and for a whole hook of a function that does nothing: nanoseconds
// a call, the best of seven runs. Usage: agent_gate_bench [THREADS]

#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "agent/futex.h"
#include "agent/gate.h"

namespace stasis::agent {
namespace {

constexpr int kCalls = 2000000;

std::atomic<int (*)(int)> g_target;
__attribute__((noinline)) int Target(int x) {
  asm volatile("");
  return x;
}
__attribute__((noinline)) int Hook(int x) {
  gate::Pass inside;
  return g_target.load(std::memory_order_acquire)(x);
}

template <class F>
double Best(int threads, F call) {
  double best = 1e9;
  for (int run = 0; run < 7; ++run) {
    std::vector<std::thread> all;
    std::atomic<int64_t> sum{0};
    for (int t = 0; t < threads; ++t) {
      all.emplace_back([&] {
        int64_t begin = NowNs();
        for (int i = 0; i < kCalls; ++i) call(i);
        sum += NowNs() - begin;
      });
    }
    for (std::thread& thread : all) thread.join();
    best = std::min(best, double(sum.load()) / threads / kCalls);
  }
  return best;
}

}  // namespace
}  // namespace stasis::agent

int main(int argc, char** argv) {
  using namespace stasis::agent;  // NOLINT
  int threads = argc > 1 ? atoi(argv[1]) : 1;
  g_target.store(Target);
  double bare = Best(threads, [](int i) { return g_target.load(std::memory_order_acquire)(i); });
  double gate = Best(threads, [](int) { gate::Pass inside; });
  double hook = Best(threads, Hook);
  printf(
      "%d thread(s): a call %.1f ns, the gate %.1f ns, a hooked call %.1f ns more than a bare "
      "one\n",
      threads, bare, gate, hook - bare);
  return 0;
}
