#include "coordinator/hold_job.h"

#include <fmt/format.h>

#include "coordinator/journal.h"

namespace stasis::coordinator {
namespace {

Status CheckMayComeBack(const jobs::Job& job) {
  if (jobs::HasEnded(job.state)) return {};
  // Whoever starts a job holds it meanwhile: this one is what a killed command has left.
  if (job.state == jobs::State::kStarting) return {};
  return Fail(Code::kFailedPrecondition,
              fmt::format("job {} is {}", job.id, jobs::StateName(job.state)),
              "end it first, or restore under another name with --job");
}

}  // namespace

const std::string& WantedJob(const RestoreOptions& options, const image::Manifest& manifest) {
  return options.job.empty() ? manifest.job.id : options.job;
}

Result<std::optional<jobs::Claim>> HoldJob(const Paths& paths, const std::string& id) {
  if (id.empty()) return std::optional<jobs::Claim>();
  auto held = jobs::Store(paths.jobs()).Hold(id);
  if (!held && held.error().code == Code::kNotFound) return std::optional<jobs::Claim>();
  if (!held) {
    // Its journal says what that is.
    if (held.error().code == Code::kAborted) STASIS_TRY(CheckJobNotUnderWay(paths, id));
    return Fail(std::move(held).error());
  }
  STASIS_TRY(CheckMayComeBack(held->job()));
  return std::optional<jobs::Claim>(std::move(*held));
}

}  // namespace stasis::coordinator
