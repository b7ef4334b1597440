// Decides how `stasis run --or-restore` begins: with the program from its start, or with one of the
// job's images.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "stasis/v1/stasis.pb.h"

namespace stasis::cli {

struct Restart {
  // What `restore` accepts, newest first. Empty: start the program anew.
  std::vector<std::string> images;
  // Why a job that existed before is started anew; may be empty.
  std::string why;
};

// `job` has ended, and `history` lists its dumps, oldest first. The program is started anew only if
// it has exited with code 0, or was never dumped. Returns an error if the job has not ended, was
// moved to another host, or if none of its images exists any more.
Result<Restart> PlanRestart(const v1::Job& job, const v1::ListCheckpointsResponse& history);

// Restores the first of `images` that can be restored, and returns the result. `note` reports each
// image that cannot be restored and is followed by an older one. An older image would lose work
// that a later attempt can save, so none is tried if the error has nothing to do with the image:
// lack of memory, a busy job, missing rights, a cancellation, or a failure that was not undone.
Result<std::string> RestoreNewest(
    const std::vector<std::string>& images,
    const std::function<Result<std::string>(const std::string& image)>& restore,
    const std::function<void(const std::string& text)>& note);

// Returns the images of a job that `dump --keep` deletes: all but the newest `keep`, and never
// `newest`, which was just written. An image that is listed twice counts once.
std::vector<std::string> ImagesToPrune(const v1::ListCheckpointsResponse& history,
                                       const std::string& newest, int keep);

}  // namespace stasis::cli
