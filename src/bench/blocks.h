// The program that is measured: workloads/blocks, as a child of ours. It holds memory in
// allocations of one size, writes all of it anew when it is told to, and compares.
#pragma once

#include <functional>
#include <string>

#include "base/subprocess.h"
#include "coordinator/survey.h"

namespace stasis::bench {

struct BlocksOptions {
  device::GpuUuid gpu;
  uint64_t size_bytes = 0;  // 0: a context and nothing else
  uint64_t allocation_bytes = 0;
  std::string agent;  // path of the library to preload; empty: none
  std::function<bool()> cancelled;
};

class Blocks {
 public:
  // Waits until it holds its memory. kNotFound without the program; kUnavailable with its last
  // words when it ended; kCancelled.
  static Result<Blocks> Start(const BlocksOptions& options);
  // Ends it at once, also while it is suspended.
  ~Blocks();
  Blocks(Blocks&& other) noexcept;
  Blocks& operator=(Blocks&&) = delete;

  // Other random words in all memory: what the last round saved is not what the next one must save.
  Status Fill();
  // kDataLoss when a word is not what was written.
  Status Verify();
  // It checks once more and ends by itself.
  Status Finish();

  const coordinator::Target& target() const { return target_; }

 private:
  Blocks() = default;
  Status Say(const std::string& line);
  Result<std::string> ReadLine();

  Subprocess child_;
  bool running_ = false;
  UniqueFd in_, out_;  // ours: its standard input and output
  std::string pending_;
  std::function<bool()> cancelled_;
  coordinator::Target target_;
};

}  // namespace stasis::bench
