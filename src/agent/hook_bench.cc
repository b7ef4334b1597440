// Measures the overhead of the agent's hooks for a call into a stub driver whose functions do
// nothing. The program starts itself again with the agent preloaded.
//
// Usage: agent_hook_bench [Google Benchmark's options]. At the end prints the CPU time of each call
// in nanoseconds: direct, through the hook, and the difference. Exits with 1 if a difference is
// above the limit. Takes the minimum over the repetitions, because other load can only add time.

#include <benchmark/benchmark.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <string>

#include "agent/driver_stub.h"

namespace stasis::agent {
namespace {

constexpr double kLimitNs = 20;
constexpr int kRepetitions = 9;

template <class Call>
void Measure(const std::string& name, bool ring, Call call) {
  benchmark::RegisterBenchmark(name.c_str(),
                               [ring, call](benchmark::State& state) {
                                 if (state.thread_index() == 0) stasis_stub_ring(ring);
                                 for (auto _ : state) call();
                               })
      ->Repetitions(kRepetitions)
      ->MinTime(0.05);
}

// Registers a benchmark for each call; `way` is the second part of their names.
void MeasureCalls(const std::string& way, const StubCalls& calls, bool ring) {
  auto name = [&](const char* what) {
    return what + std::string(ring ? ", rings" : "") + "/" + way;
  };
  Measure(name("launch"), ring,
          [f = calls.launch] { f(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr); });
  Measure(name("memset-async"), ring, [f = calls.memset] { f(4096, 0, 64, nullptr); });
  Measure(name("memcpy-async"), ring, [f = calls.memcpy] { f(4096, nullptr, 64, nullptr); });
  Measure(name("event-record"), ring, [f = calls.record] { f(nullptr, nullptr); });
  Measure(name("stream-wait-event"), ring, [f = calls.wait_event] { f(nullptr, nullptr, 0); });
  if (!ring) Measure(name("stream-synchronize"), ring, [f = calls.synchronize] { f(nullptr); });
}

template <class F>
F* Find(F*, const char* name) {
  return reinterpret_cast<F*>(dlsym(RTLD_DEFAULT, name));
}

StubCalls FindCalls() {
  StubCalls c{};
  c.launch = Find(c.launch, "cuLaunchKernel");
  c.memset = Find(c.memset, "cuMemsetD8Async");
  c.memcpy = Find(c.memcpy, "cuMemcpyHtoDAsync_v2");
  c.record = Find(c.record, "cuEventRecord");
  c.wait_event = Find(c.wait_event, "cuStreamWaitEvent");
  c.synchronize = Find(c.synchronize, "cuStreamSynchronize");
  return c;
}

class Differences : public benchmark::ConsoleReporter {
 public:
  Differences() : ConsoleReporter(OO_Tabular) {}

  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      if (run.run_type != Run::RT_Iteration || run.error_occurred) continue;
      const std::string& name = run.run_name.function_name;
      const size_t slash = name.find('/');
      auto& best = best_[name.substr(0, slash)][name.substr(slash + 1)];
      const double ns = run.GetAdjustedCPUTime();
      best = best == 0 ? ns : std::min(best, ns);
    }
  }

  bool Print() {
    bool good = !best_.empty();
    printf("%-26s %8s %8s %8s\n", "ns a call", "plain", "hooked", "more");
    for (auto& [call, by] : best_) {
      const double more = by["hooked"] - by["plain"];
      printf("%-26s %8.1f %8.1f %8.1f%s\n", call.c_str(), by["plain"], by["hooked"], more,
             more > kLimitNs ? "  above the limit" : "");
      good &= more <= kLimitNs;
    }
    return good;
  }

 private:
  std::map<std::string, std::map<std::string, double>> best_;
};

}  // namespace
}  // namespace stasis::agent

int main(int argc, char** argv) {
  using namespace stasis::agent;  // NOLINT
  if (dlsym(RTLD_DEFAULT, "stasis_agent_header") == nullptr) {
    if (getenv("LD_PRELOAD") != nullptr) {
      fprintf(stderr, "the loader could not load %s\n", getenv("LD_PRELOAD"));
      return 1;
    }
    setenv("LD_PRELOAD", STASIS_AGENT_LIBRARY, 1);
    execv("/proc/self/exe", argv);
    perror("cannot start again with the agent preloaded");
    return 1;
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  const StubCalls plain = *stasis_stub_calls();
  const StubCalls hooked = FindCalls();
  if (hooked.launch == plain.launch) {
    fprintf(stderr, "the agent hooks no functions\n");
    return 1;
  }
  for (bool ring : {false, true}) {
    MeasureCalls("plain", plain, ring);
    MeasureCalls("hooked", hooked, ring);
  }
  Differences differences;
  benchmark::RunSpecifiedBenchmarks(&differences);
  return differences.Print() ? 0 : 1;
}
