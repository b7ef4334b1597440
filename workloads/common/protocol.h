// The interface that all workloads share.
//
//   NAME [--rounds N] [--interval MS] [--memory SIZE] [--device N] [--sabotage] …
//
// A workload prints `READY` after its setup and `ROUND <n> <checksum>` after each round. It ends
// after N rounds or, if N is 0 (the default), on SIGTERM. It then compares all of its data with a
// separate computation and prints `EXIT-SUCCESS` (exit code 0) or `FAILED: <reason>` (exit code 1).
// The output is the same on softgpu and on every GPU. Workloads do not take part in checkpoints, so
// a checkpoint at any time finds an ordinary program.
#pragma once

#include <cstdint>
#include <string>

namespace workloads {

struct Options {
  uint64_t rounds = 0;
  int interval_ms = 100;
  uint64_t memory_bytes = 0;      // size of the test data: GPU memory filled with random words
  uint64_t allocation_bytes = 0;  // size of one allocation; 0: the program's default
  int handles = 0;                // number of additional handles; supported by some programs
  int device = 0;
  int devices = 1;   // number of GPUs, starting at `device`; supported by some programs
  int children = 2;  // supported by some programs
  int port = 0;
  int child = 0;          // 1, 2, …: this process is a child of its own program
  bool sabotage = false;  // damage one byte before the last check, which must then fail
  bool commands = false;  // read commands from standard input; supported by some programs
};

// Parses the command line (exit code 2 on errors), makes stdout line-buffered, and blocks SIGTERM
// until Wait(). Call it first, before the driver starts threads.
Options Begin(int argc, char** argv);

[[noreturn]] void Fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

void PrintReady();
void PrintRound(uint64_t round, uint64_t checksum);
[[noreturn]] void ExitSuccess();

enum class Wake { kTimeout, kReadable, kStop };

// Waits for SIGTERM, for `fd` to become readable (if fd >= 0), or for the timeout (if timeout_ms >=
// 0). Continues to wait if a checkpoint interrupts the system call.
Wake Wait(int timeout_ms, int fd = -1);

class Workload {
 public:
  virtual ~Workload() = default;
  virtual void SetUp(const Options& options) = 0;
  virtual uint64_t Round(uint64_t round) = 0;  // returns the checksum to print
  virtual void Verify() = 0;                   // compares all data; calls Fail() on a difference
  virtual void Sabotage() = 0;                 // changes one byte such that Verify() fails
  virtual void TearDown() = 0;                 // frees everything
};

// Runs a workload that works in rounds, from start to end.
[[noreturn]] void Run(Workload& workload, const Options& options);

// Ends a workload: sabotages its memory if requested, verifies, tears down, and prints the result.
[[noreturn]] void Finish(Workload& workload, const Options& options);

}  // namespace workloads
