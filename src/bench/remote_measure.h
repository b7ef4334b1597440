// The measurements of `stasis bench --remote`: random GPU memory is moved to a repository and back,
// and for comparison the same number of bytes is moved as plain objects. remote_report.h evaluates
// the measurements.
//
// One round, of which only the four transfers are timed:
//
//   fill       memory with random words, different from those of earlier rounds
//   put        plain objects
//   write      a local image of the same memory
//   push       of that image
//   get        plain objects
//   restore    the image, streamed into the same memory
//   compare    every word
//   clean up   delete the image in the repository, gc
#pragma once

#include <cstdint>
#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include "base/result.h"
#include "objects/object_store.h"
#include "repository/repository.h"
#include "store/unit_names.h"
#include "store/write_options.h"

namespace stasis::bench {

struct RemoteOptions {
  const repository::Repository& repository;
  // A second client of the same object store, for the plain objects, so that limits of the
  // repository's client (threads, connections) count against the repository.
  objects::ObjectStore& plain;
  // The repository's name in messages, as users give it to `-R`.
  std::string repository_name;
  std::string store_path;  // for the local image, which is hidden and removed
  const store::UnitNames& names;
  store::PackLimits packs = {};  // of the local image
  uint64_t size_bytes = 0;       // of the GPU memory, a multiple of 8
  uint64_t object_bytes = 0;     // of one plain object
  int rounds = 0;
  std::function<void(const std::string&)> progress = {};
  // Stops the measurement, even in the middle of a request. The measurement then removes everything
  // that it has written.
  std::stop_token stop = {};
};

struct RemoteRound {
  double put_s = 0;
  double push_s = 0;
  double get_s = 0;
  // Time until everything that a restore reads from the repository is checked and in memory.
  double restore_s = 0;
  uint64_t push_requests = 0;
  uint64_t retries = 0;  // retries of push and restore
};

struct RemoteMeasurements {
  uint64_t size_bytes = 0;
  uint64_t object_bytes = 0;
  uint64_t objects = 0;
  // The number of plain objects that moved at a time. It is the fastest of several numbers that
  // were tried before the first round.
  unsigned put_parallel = 0;
  unsigned get_parallel = 0;
  std::vector<RemoteRound> rounds;
  double total_s = 0;
};

// Runs all measurements. Removes everything that it has written to the repository and the store,
// even after an error. If something cannot be removed, the error's hint names it. Needs size_bytes
// of host memory, and as much free space in the store. Returns kResourceExhausted if there is less
// host memory, kDataLoss if a word came back changed, and kFailedPrecondition if gc cannot be used
// here.
Result<RemoteMeasurements> MeasureRemote(const RemoteOptions& options);

}  // namespace stasis::bench
