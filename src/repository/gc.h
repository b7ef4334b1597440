// Garbage collection of a repository: deletes packs and indexes that no image needs. It may be
// killed at any point, and may run at the same time as pushes, pulls, deletions and other gcs.
//
// The steps, in this order. protocol_model_testing.h checks that each of them is needed;
// docs/format/repository.md explains why.
//
//   remove abandoned   remove records of pushes and gcs that were killed
//   list               list packs, then indexes
//   first look         keep what pending records and images need
//   condemn            write a record of what this gc will delete
//   read pending       keep what pending records need now
//   read images        then keep what images need now
//   delete
//   remove record      remove this gc's own record
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/parallel.h"
#include "base/result.h"
#include "repository/layout.h"
#include "repository/limits.h"
#include "repository/repository.h"

namespace stasis::repository {

struct GcOptions {
  // Called with the number of objects deleted so far and the number to be deleted in all. Returns
  // false to cancel.
  Progress progress;
  std::stop_token stop;
  Deadline deadline;
  // Records that are older than this were left by killed processes. A time shorter than
  // kRecordAbandoned can lose images if a push or another gc runs.
  std::chrono::nanoseconds abandoned = kRecordAbandoned;
  // If set, deletes only objects that these pushes stored, and no records of killed processes.
  std::optional<std::set<PushId>> only;
  // Maximum age at which the gc relies on its own record. Only tests change it.
  std::chrono::nanoseconds record_valid = kRecordValid;
};

struct GcReport {
  uint64_t images = 0;
  uint64_t pending = 0;  // pushes under way, or killed recently
  uint64_t deleted_packs = 0;
  uint64_t deleted_bytes = 0;        // of packs and indexes
  uint64_t removed_records = 0;      // of killed pushes and gcs
  uint64_t leftovers = 0;            // of interrupted uploads
  std::vector<std::string> unknown;  // objects outside of the format, never deleted; at most 100
  // Totals of all calls to the same ObjectStore during the gc.
  uint64_t requests = 0;
  uint64_t retries = 0;
  uint64_t sent_bytes = 0;
  uint64_t received_bytes = 0;
  double seconds = 0;
};

// Deletes nothing if a record of a push or an image cannot be read, because the objects that it
// needs are then unknown. A damaged record of a push or a gc is removed if it was stored so long
// ago that its process must have been killed. Returns the error of ObjectStore::CheckLists().
Result<GcReport> CollectGarbage(const Repository& repository, const GcOptions& options = {});

}  // namespace stasis::repository
