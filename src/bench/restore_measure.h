// The measurements of `stasis bench --restore`: a program with GPU memory is dumped, and restored
// several times, from the page cache, from memory (tmpfs) and from the disk; under the agent, and
// by the driver's own path. Runs the commands of Stasis, as a user does, so that the time to the
// first answer includes everything. restore_report.h evaluates the measurements.
//
// One round:
//
//   prepare    read the image into the page cache, or drop it from there
//   restore    until the command has ended and the program has printed the next round (its answer)
//   end        the program compares all of its memory, and ends with exit code 0
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "device/device_control.h"

namespace stasis::bench {

struct RestoreOptions {
  device::Gpu gpu;
  uint64_t size_bytes = 0;
  int rounds = 0;
  int driver_rounds = 0;  // 0: do not measure the driver's own path
  bool ignore_memory = false;
  std::string disk;   // folders for images, on the disk
  std::string tmpfs;  // and in memory
  std::function<void(const std::string&)> progress;
  std::function<bool()> cancelled;
};

// The result of a command, as it prints it (docs/schema/operation.json).
using Account = std::shared_ptr<const nlohmann::json>;

struct RestoreRound {
  double command_s = 0;
  double answer_s = 0;  // from the start of the command to the program's first answer
  Account account;
};

struct RestoreSeries {
  std::string source;  // "page cache", "tmpfs" or "disk"
  bool agent = true;   // false: by the driver's own path
  double dump_s = 0;   // the command
  Account dump;
  std::vector<RestoreRound> rounds;
};

struct RestoreMeasurements {
  uint64_t size_bytes = 0;
  std::vector<RestoreSeries> series;
  double total_s = 0;
};

// Runs all measurements. Ends its programs and removes its jobs and images, even after an error.
// Returns kDataLoss if a restored program found wrong memory, and the error of a failed command.
Result<RestoreMeasurements> MeasureRestore(const RestoreOptions& options);

}  // namespace stasis::bench
