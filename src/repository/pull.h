// Pulls an image from a repository into a folder of images. The local image is then either complete
// or absent, as after a dump.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/parallel.h"
#include "base/result.h"
#include "repository/repository.h"
#include "store/manifest.h"
#include "store/origin.h"
#include "store/unit_names.h"
#include "store/write_options.h"

namespace stasis::repository {

struct PullOptions {
  // The local names of units. If the repository's names were made with the same secret, units that
  // a local image has are shared with it and not fetched.
  const store::UnitNames* names = nullptr;
  // How units are written; `uid` is taken from the image.
  store::WriteOptions write;
  // The key of the local image's origin MAC, from PulledOrigin. Never pass this installation's own
  // key, which would claim that this installation wrote the memory itself. Without a key the origin
  // is unknown.
  std::optional<store::OriginKey> origin;
  // Leaves out the memory of the GPUs, and sets Manifest::ranges_elsewhere.
  bool without_ranges = false;
  // If set: called with the image's manifest before anything else is read. An error ends the pull.
  std::function<Status(const store::Manifest&)> accept;
  // Called with the bytes of units that were fetched or linked so far, and with the bytes of all
  // units. Returns false to cancel.
  Progress progress;
  // Ends the pull, even in the middle of a request.
  std::stop_token stop;
  Deadline deadline;
};

struct PullReport {
  std::string path;            // of the local image
  uint64_t image_bytes = 0;    // of units that are not zero, with repetitions
  uint64_t fetched_bytes = 0;  // of units that were fetched, uncompressed
  uint64_t shared_bytes = 0;   // of units that local images had
  // Totals of all calls to the same ObjectStore during the pull.
  uint64_t received_bytes = 0;
  uint64_t requests = 0;
  uint64_t retries = 0;
  double seconds = 0;
  std::vector<std::string> notes;  // for the user
};

// Pulls the image `name` to STORE/LOCAL_NAME. Checks every unit, and every file as a whole. Returns
// kNotFound if the repository has no such image, kAlreadyExists if LOCAL_NAME is taken, kDataLoss
// if anything is damaged or missing.
Result<PullReport> Pull(const Repository& repository, const std::string& name,
                        const std::string& store, const std::string& local_name,
                        const PullOptions& options);

}  // namespace stasis::repository
