#include "operations/hold_job.h"

#include <fmt/format.h>

#include <algorithm>

#include "gpu_state/agents.h"
#include "gpu_state/suspended.h"
#include "jobs/watch.h"
#include "plan/journal.h"
#include "process/tree.h"

namespace stasis::operations {
namespace {

// A killed program takes a while to end, because the driver has to release its GPU memory.
constexpr std::chrono::seconds kEndTime{10};

Status CheckMayComeBack(const Paths& paths, const jobs::Job& job) {
  if (jobs::HasEnded(job.state)) return {};
  STASIS_TRY(jobs::CheckHere(job));
  // A command holds a job while it starts the program. The caller holds this job now, so the
  // command that was starting it has been killed.
  if (job.state == jobs::State::kStarting) return {};
  if (IsSuspended(paths, job)) {
    return Fail(
        Code::kFailedPrecondition, fmt::format("job {} is suspended", job.id),
        fmt::format("`stasis resume {0}` resumes it without an image. To restore one of its "
                    "images, end it first with `stasis kill -s KILL {0}`, or use another "
                    "name with --job",
                    job.id));
  }
  return Fail(Code::kFailedPrecondition,
              fmt::format("job {} is {}", job.id, jobs::StateName(job.state)),
              "end it first, or use another name with --job");
}

}  // namespace

const std::string& WantedJob(const RestoreOptions& options, const store::Manifest& manifest) {
  return options.job.empty() ? manifest.job.id : options.job;
}

bool IsSuspended(const Paths& paths, const jobs::Job& job) {
  if (job.state != jobs::State::kRunning || !job.processes) return false;
  auto tree = process::ReadTree(job.processes->root.pid);
  if (!tree) return false;
  return std::any_of(tree->members.begin(), tree->members.end(), [&](const auto& member) {
    auto record = gpu_state::LoadSuspended(paths, member.id);
    return record && (!record->context_kept || gpu_state::LoadKeptContext(paths, member.id));
  });
}

Result<std::optional<jobs::Claim>> HoldJob(const Paths& paths, const std::string& id) {
  if (id.empty()) return std::optional<jobs::Claim>();
  const jobs::Store store(paths.jobs());
  const auto seen = store.Load(id);
  if (seen && seen->state == jobs::State::kEnding) {
    (void)jobs::AwaitEnd(store, id, Deadline::In(kEndTime));
  }
  auto held = store.Hold(id);
  if (!held && held.error().code == Code::kNotFound) return std::optional<jobs::Claim>();
  if (!held) {
    // Prefer an error that names the operation which holds the job.
    if (held.error().code == Code::kAborted) STASIS_TRY(plan::CheckJobNotUnderWay(paths, id));
    return Fail(std::move(held).error());
  }
  STASIS_TRY(CheckMayComeBack(paths, held->job()));
  return std::optional<jobs::Claim>(std::move(*held));
}

}  // namespace stasis::operations
