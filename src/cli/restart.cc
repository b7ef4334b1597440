#include "cli/restart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>

namespace stasis::cli {
namespace {

// Returns true if the error may be that of the image, so that an older one may succeed.
bool MayBlameImage(const Error& error) {
  if (error.not_undone) return false;
  switch (error.code) {
    case Code::kCancelled:
    case Code::kAborted:
    case Code::kAlreadyExists:
    case Code::kPermissionDenied:
    case Code::kResourceExhausted:
    case Code::kUnavailable:
      return false;
    default:
      return true;
  }
}

}  // namespace

Result<Restart> PlanRestart(const v1::Job& job, const v1::ListCheckpointsResponse& history) {
  const std::string& id = job.id();
  const bool exited = job.state() == "exited", dumped = job.state() == "dumped";
  if (!job.node().empty()) {
    return Fail(Code::kFailedPrecondition,
                fmt::format("job {} runs on {}, not on this machine", id, job.node()),
                fmt::format("if {} has failed, `stasis kill --lost {}` records that the job has "
                            "ended",
                            job.node(), id));
  }
  if (!exited && !dumped && job.state() != "lost") {
    return Fail(Code::kFailedPrecondition, fmt::format("job {} is {}", id, job.state()),
                "one program at a time has the name; `stasis attach " + id + "` shows this one");
  }
  if (!job.moved_to().empty() || !job.perhaps_moved_to().empty()) {
    const bool sure = !job.moved_to().empty();
    return Fail(Code::kFailedPrecondition,
                fmt::format("job {} was {}moved to {}", id, sure ? "" : "perhaps ",
                            sure ? job.moved_to() : job.perhaps_moved_to()),
                "`stasis delete " + id + "` forgets the job here");
  }
  if (exited && job.has_code() && job.code() == 0) {
    return Restart{{}, fmt::format("job {} had finished with code 0", id)};
  }
  Restart restart;
  size_t dumps = 0;
  for (const v1::Checkpoint& checkpoint : history.checkpoints()) {
    if (checkpoint.kind() != "dump") continue;
    ++dumps;
    if (checkpoint.exists()) {
      restart.images.push_back(checkpoint.image());
    } else if (!checkpoint.copy().empty()) {
      restart.images.push_back(checkpoint.copy());
    }
  }
  std::reverse(restart.images.begin(), restart.images.end());
  if (!restart.images.empty()) return restart;
  if (dumps > 0 || dumped) {
    return Fail(
        Code::kNotFound,
        fmt::format("none of the images of job {} exists any more, so it would start over", id),
        fmt::format("to start the program over, delete the job first: `stasis delete {}`", id));
  }
  restart.why = fmt::format("job {} had ended without an image", id);
  return restart;
}

Result<std::string> RestoreNewest(
    const std::vector<std::string>& images,
    const std::function<Result<std::string>(const std::string& image)>& restore,
    const std::function<void(const std::string& text)>& note) {
  assert(!images.empty());
  for (size_t i = 0;; ++i) {
    auto restored = restore(images[i]);
    if (restored || i + 1 == images.size() || !MayBlameImage(restored.error())) return restored;
    note(fmt::format("stasis: {}\nstasis: trying the image before it: {}\n",
                     restored.error().ToString(), images[i + 1]));
  }
}

std::vector<std::string> ImagesToPrune(const v1::ListCheckpointsResponse& history,
                                       const std::string& newest, int keep) {
  std::vector<std::string> kept = {newest}, pruned;
  for (int i = history.checkpoints_size() - 1; i >= 0; --i) {
    const v1::Checkpoint& checkpoint = history.checkpoints(i);
    if (checkpoint.kind() != "dump" || !checkpoint.exists()) continue;
    auto listed = [&](const std::vector<std::string>& images) {
      return std::find(images.begin(), images.end(), checkpoint.image()) != images.end();
    };
    if (listed(kept) || listed(pruned)) continue;
    const bool keeps = kept.size() < static_cast<size_t>(keep);
    (keeps ? kept : pruned).push_back(checkpoint.image());
  }
  return pruned;
}

}  // namespace stasis::cli
