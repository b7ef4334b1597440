// The measured program: workloads/blocks, as a child process. It holds memory in allocations of one
// size, overwrites all of it on command, and verifies it.
#pragma once

#include <functional>
#include <string>

#include "base/subprocess.h"
#include "checks/survey.h"

namespace stasis::bench {

struct BlocksOptions {
  device::GpuUuid gpu;
  uint64_t size_bytes = 0;  // 0: only a context
  uint64_t allocation_bytes = 0;
  std::string agent;  // path of the library to preload; empty for none
  std::function<bool()> cancelled;
};

class Blocks {
 public:
  // Starts the program and waits until it holds its memory. Returns kNotFound if the program does
  // not exist, kUnavailable with its last output if it exited, or kCancelled.
  static Result<Blocks> Start(const BlocksOptions& options);
  // Kills the program at once, even if it is suspended.
  ~Blocks();
  Blocks(Blocks&& other) noexcept;
  Blocks& operator=(Blocks&&) = delete;

  // Fills all memory with other random words, so that the next round cannot reuse the last round's
  // data.
  Status Fill();
  // Returns kDataLoss if a word differs from the one written.
  Status Verify();
  // Verifies once more, and lets the program exit.
  Status Finish();

  const checks::Target& target() const { return target_; }

 private:
  Blocks() = default;
  Status Say(const std::string& line);
  Result<std::string> ReadLine();

  Subprocess child_;
  bool running_ = false;
  UniqueFd in_, out_;  // connected to its standard input and output
  std::string pending_;
  std::function<bool()> cancelled_;
  checks::Target target_;
};

}  // namespace stasis::bench
