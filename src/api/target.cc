#include "api/target.h"

#include <fmt/format.h>

#include "jobs/store.h"

namespace stasis::api {

Result<checks::Target> ParseTarget(const Paths& paths, const std::string& text) {
  STASIS_ASSIGN(auto resolved, jobs::Store(paths.jobs()).ResolveTarget(text));
  if (resolved.root.pid.value == 0) {
    return Fail(
        Code::kFailedPrecondition,
        fmt::format("job {} does not run ({})", text, jobs::StateName(resolved.job->state)),
        resolved.job->checkpoints.empty() ? "" : "`stasis restore " + text + "` restores it");
  }
  checks::Target target;
  target.name = text;
  // A process inside a job's tree is not the job: its image must not become the job's.
  bool whole =
      resolved.job && resolved.job->processes && resolved.job->processes->root == resolved.root;
  if (whole) target.job = resolved.job->id;
  target.root = resolved.root;
  return target;
}

}  // namespace stasis::api
