// Lists, verifies and deletes the images of a repository. Repository::ReadImage reads one record.
#pragma once

#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/parallel.h"
#include "base/result.h"
#include "repository/repository.h"
#include "store/unit_names.h"

namespace stasis::repository {

struct ImageSummary {
  std::string name;
  // Set if the record cannot be read; the other fields are then empty.
  std::optional<Error> error;
  Id128 id;
  int64_t created_unix_ns = 0;  // when the image was dumped
  int64_t pushed_unix_ns = 0;
  std::string job;
  std::vector<std::string> command;
  std::string host;
  uint64_t memory_bytes = 0;  // of the program, including zero units
  uint64_t device_bytes = 0;  // of GPU memory
  uint64_t packs = 0;
};

// Lists images in the order of their names.
Result<std::vector<ImageSummary>> ListImages(const Repository& repository,
                                             const objects::CallOptions& call = {});

struct VerifyOptions {
  // Also fetches and checks all units. Otherwise only checks that all packs exist and have the
  // right lengths.
  bool reads_units = true;
  // If not null: compares the data of units with their recorded names, if those names were made
  // with the same key.
  const store::UnitNames* names = nullptr;
  // Reports a finding if the image was pushed before this time, because a server can return an old
  // record. 0: no limit.
  int64_t not_before_unix_ns = 0;
  Progress progress;  // with the bytes of units
  std::stop_token stop;
  Deadline deadline;
};

struct VerifyReport {
  std::vector<std::string> findings;  // empty if the image is intact; each request adds at most one
  uint64_t packs = 0;
  // Of units that were read and are intact. A unit of several files counts once for each file.
  uint64_t bytes = 0;
  double seconds = 0;
};

// Returns kNotFound if there is no such image. Damage is reported as findings.
Result<VerifyReport> VerifyImage(const Repository& repository, const std::string& name,
                                 const VerifyOptions& options = {});

// Deletes the record of an image, with one request. A later gc deletes its packs. Returns kNotFound
// if there is no such image.
Status DeleteImage(const Repository& repository, const std::string& name,
                   const objects::CallOptions& call = {});

}  // namespace stasis::repository
