#include "common/protocol.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <functional>
#include <string_view>

namespace workloads {
namespace {

volatile sig_atomic_t stop_asked = 0;

void OnStop(int) { stop_asked = 1; }

[[noreturn]] void Usage(const char* program, const char* what, const char* argument) {
  fprintf(stderr, "%s: %s: %s\n", program, what, argument);
  fprintf(stderr,
          "usage: %s [--rounds N] [--interval MS] [--memory SIZE] [--allocation SIZE] "
          "[--handles N] [--device N] [--devices N] [--children N] [--port P] [--commands] "
          "[--sabotage]\n",
          program);
  exit(2);
}

// Parses "4096", "64K", "300M", "8G", "8GiB"; units are powers of 1024.
uint64_t ParseSize(const char* program, const char* text) {
  char* end = nullptr;
  errno = 0;
  const uint64_t number = strtoull(text, &end, 10);
  if (errno != 0 || end == text) Usage(program, "not a size", text);
  const std::string_view unit(end);
  static constexpr struct {
    std::string_view name;
    int shift;
  } kUnits[] = {{"", 0},     {"K", 10}, {"KiB", 10}, {"M", 20},
                {"MiB", 20}, {"G", 30}, {"GiB", 30}, {"T", 40}};
  for (const auto& known : kUnits) {
    if (unit == known.name) return number << known.shift;
  }
  Usage(program, "not a size", text);
}

int64_t NowMs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1000000;
}

}  // namespace

Options Begin(int argc, char** argv) {
  const char* program = argv[0];
  Options options;
  const struct {
    std::string_view name;
    std::function<void(uint64_t)> set;
  } values[] = {
      {"--rounds", [&](uint64_t v) { options.rounds = v; }},
      {"--interval", [&](uint64_t v) { options.interval_ms = static_cast<int>(v); }},
      {"--memory", [&](uint64_t v) { options.memory_bytes = v; }},
      {"--allocation", [&](uint64_t v) { options.allocation_bytes = v; }},
      {"--handles", [&](uint64_t v) { options.handles = static_cast<int>(v); }},
      {"--device", [&](uint64_t v) { options.device = static_cast<int>(v); }},
      {"--devices", [&](uint64_t v) { options.devices = static_cast<int>(v); }},
      {"--children", [&](uint64_t v) { options.children = static_cast<int>(v); }},
      {"--port", [&](uint64_t v) { options.port = static_cast<int>(v); }},
      {"--child", [&](uint64_t v) { options.child = static_cast<int>(v); }},
  };
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--sabotage") {
      options.sabotage = true;
      continue;
    }
    if (std::string_view(argv[i]) == "--commands") {
      options.commands = true;
      continue;
    }
    bool known = false;
    for (const auto& value : values) {
      if (value.name != argv[i]) continue;
      if (i + 1 == argc) Usage(program, "needs a value", argv[i]);
      value.set(ParseSize(program, argv[++i]));
      known = true;
      break;
    }
    if (!known) Usage(program, "unknown option", argv[i]);
  }

  setvbuf(stdout, nullptr, _IOLBF, 0);
  // SIGTERM is blocked except in Wait(): it never interrupts a driver call, and no signal is lost
  // between the check of the flag and the wait.
  sigset_t term;
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &term, nullptr);
  struct sigaction action {};
  action.sa_handler = OnStop;
  sigaction(SIGTERM, &action, nullptr);
  return options;
}

void Fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  flockfile(stdout);
  printf("FAILED: ");
  vprintf(format, arguments);
  printf("\n");
  fflush(stdout);
  funlockfile(stdout);
  va_end(arguments);
  // Do not call exit(): the driver's destructors may wait for work that never ends.
  _exit(1);
}

void PrintReady() { puts("READY"); }

void PrintRound(uint64_t round, uint64_t checksum) {
  printf("ROUND %llu %016llx\n", static_cast<unsigned long long>(round),
         static_cast<unsigned long long>(checksum));
}

void ExitSuccess() {
  puts("EXIT-SUCCESS");
  exit(0);
}

Wake Wait(int timeout_ms, int fd) {
  sigset_t during;
  pthread_sigmask(SIG_BLOCK, nullptr, &during);
  sigdelset(&during, SIGTERM);
  const int64_t deadline = NowMs() + timeout_ms;
  while (stop_asked == 0) {
    timespec left{};
    if (timeout_ms >= 0) {
      int64_t left_ms = deadline - NowMs();
      // After a restore on another boot the monotonic clock may have gone far back.
      if (left_ms > timeout_ms) left_ms = timeout_ms;
      if (left_ms > 0) {
        left.tv_sec = left_ms / 1000;
        left.tv_nsec = left_ms % 1000 * 1000000;
      }
    }
    pollfd poll_fd{fd, POLLIN, 0};
    const int ready = ppoll(&poll_fd, fd >= 0 ? 1 : 0, timeout_ms >= 0 ? &left : nullptr, &during);
    if (ready > 0) return Wake::kReadable;
    if (ready == 0) return Wake::kTimeout;
    if (errno != EINTR) Fail("ppoll: %s", strerror(errno));
  }
  return Wake::kStop;
}

void Run(Workload& workload, const Options& options) {
  workload.SetUp(options);
  PrintReady();
  for (uint64_t round = 1; options.rounds == 0 || round <= options.rounds; ++round) {
    PrintRound(round, workload.Round(round));
    if (round == options.rounds) break;
    if (Wait(options.interval_ms) == Wake::kStop) break;
  }
  Finish(workload, options);
}

void Finish(Workload& workload, const Options& options) {
  if (options.sabotage) workload.Sabotage();
  workload.Verify();
  workload.TearDown();
  ExitSuccess();
}

}  // namespace workloads
