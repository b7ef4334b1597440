// Pushes a local image to a repository. Only units that the repository does not have are uploaded.
//
// The steps, in this order. protocol_model_testing.h checks that each of them is needed;
// docs/format/repository.md explains why.
//
//   look            find units that the repository has
//   write pending   announce what the image will need: from now on no gc condemns it
//   put packs
//   put index       of each push: place, then names
//   ask condemned   check that no gc is about to delete anything that the image needs
//   ask present     then check that everything that the image needs exists
//   repair          upload lost units under new names, and continue with "write pending"
//   publish         write the image's record
//   remove pending
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/parallel.h"
#include "base/result.h"
#include "repository/layout.h"
#include "repository/limits.h"
#include "repository/repository.h"
#include "store/codec.h"
#include "store/image_reader.h"
#include "store/unit_names.h"

namespace stasis::repository {

struct PushOptions {
  // The names by which units are recognised. Hosts with the same secret deduplicate with each
  // other.
  const store::UnitNames* names = nullptr;
  // Set if this installation wrote the image, because the names in its packs' indexes are then
  // right. Otherwise the names are computed from the data.
  bool trusts_index = false;
  store::Codec codec = store::Codec::kNone;
  // Called with the bytes of units that were uploaded so far, and with the bytes of all units to be
  // uploaded. Returns false to cancel.
  Progress progress;
  // Called with the id of each push before the push stores objects, even if the push fails later.
  // May be empty.
  std::function<void(const PushId&)> announced;
  // Ends the push, even in the middle of a request.
  std::stop_token stop;
  Deadline deadline;
  // Maximum age at which the push relies on its pending record. Only tests change it.
  std::chrono::nanoseconds record_valid = kRecordValid;
};

struct PushReport {
  uint64_t image_bytes = 0;  // of distinct units that are not zero
  uint64_t known_bytes = 0;  // of those, in units that the repository had
  uint64_t new_bytes = 0;    // of units that were uploaded, before compression
  uint64_t packs = 0;        // number of uploaded packs
  uint64_t repairs = 0;      // rounds of uploads that replaced units deleted by a gc
  // Totals of all calls to the same ObjectStore during the push.
  uint64_t sent_bytes = 0;
  uint64_t requests = 0;
  uint64_t retries = 0;
  double seconds = 0;
  std::vector<std::string> notes;  // for the user
};

// Succeeds, with a note, if the repository already has the same image under this name. Returns
// kAlreadyExists if it has another one, and kAborted if another push of this name ended at the same
// time and replaced the image. After an error the image is absent, except that an error of the step
// "publish" may leave it absent or complete; the message then says so. A later gc removes what a
// failed push has uploaded. The image is verified while it is read.
Result<PushReport> Push(const Repository& repository, const store::ImageReader& image,
                        const std::string& name, const PushOptions& options);

}  // namespace stasis::repository
