// What every workload has in common, seen from outside.
//
//   NAME [--rounds N] [--interval MS] [--memory SIZE] [--device N] [--sabotage] …
//
// It prints `READY` when it is set up and `ROUND <n> <checksum>` after each round. It ends after N
// rounds, or (N = 0, the default) when it gets SIGTERM; then it compares everything it holds with a
// computation of its own and prints `EXIT-SUCCESS` (exit code 0) or `FAILED: <what>` (exit code 1).
// The same rounds give the same lines on softgpu and on every GPU. Nothing else steers it, so that
// a checkpoint at any moment meets a plain program.
#pragma once

#include <cstdint>
#include <string>

namespace workloads {

struct Options {
  uint64_t rounds = 0;
  int interval_ms = 100;
  uint64_t memory_bytes = 0;      // ballast: device memory filled with random words
  uint64_t allocation_bytes = 0;  // of one allocation; 0: the program's own choice
  int handles = 0;                // more of them; only where a program says so
  int device = 0;
  int devices = 1;   // only where a program says so: on how many GPUs, from `device` on
  int children = 2;  // only where a program says so
  int port = 0;
  int child = 0;          // 1, 2, …: this process is a child of its own program
  bool sabotage = false;  // damage one byte before the last check, which must then fail
  bool commands = false;  // only where a program says so: steered by its standard input
};

// Reads the command line (a wrong one ends the program with 2), makes stdout line-buffered and
// holds SIGTERM back until Wait(). Comes first, before the driver starts threads.
Options Begin(int argc, char** argv);

[[noreturn]] void Fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

void PrintReady();
void PrintRound(uint64_t round, uint64_t checksum);
[[noreturn]] void ExitSuccess();

enum class Wake { kTimeout, kReadable, kStop };

// Waits for SIGTERM, for `fd` to become readable (fd >= 0), or for the time to pass (timeout_ms >=
// 0). A checkpoint that interrupts it is not noticed.
Wake Wait(int timeout_ms, int fd = -1);

class Workload {
 public:
  virtual ~Workload() = default;
  virtual void SetUp(const Options& options) = 0;
  virtual uint64_t Round(uint64_t round) = 0;  // returns the checksum to print
  virtual void Verify() = 0;                   // compares all contents; Fail()s on a difference
  virtual void Sabotage() = 0;                 // changes one byte that Verify() must notice
  virtual void TearDown() = 0;  // gives everything back, as a well-behaved program does
};

// The whole life of a workload that goes round by round.
[[noreturn]] void Run(Workload& workload, const Options& options);

// The end of every life: sabotage if asked for, verify, tear down, say so.
[[noreturn]] void Finish(Workload& workload, const Options& options);

}  // namespace workloads
