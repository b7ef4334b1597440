#include "api/target.h"

#include <fmt/format.h>

#include "api/usage_error.h"
#include "containers/runtime.h"
#include "jobs/store.h"

namespace stasis::api {
namespace {

Result<checks::Target> ContainerTarget(const std::string& text,
                                       const v1::ContainerPlaces& message) {
  STASIS_ASSIGN(const auto reference, containers::ParseReference(text));
  STASIS_ASSIGN(const auto places, PlacesOf(message));
  const auto runner = containers::MakeCommandRunner();
  STASIS_ASSIGN(const auto container,
                containers::FindRunning(*runner, reference, places, Deadline::In(kRuntimeTimeout)));
  STASIS_ASSIGN(const auto init, process::ReadStat({container.pid}));
  checks::Target target;
  target.name = text;
  target.root = init.id;
  return target;
}

}  // namespace

Result<containers::Places> PlacesOf(const v1::ContainerPlaces& message) {
  STASIS_TRY(CheckAbsolute("runc's --root", message.runc_root()));
  STASIS_TRY(CheckAbsolute("containerd's socket", message.containerd_address()));
  return containers::Places{message.runc_root(), message.containerd_address()};
}

Result<checks::Target> ParseTarget(const Paths& paths, const std::string& text,
                                   const v1::ContainerPlaces& places) {
  if (containers::IsReference(text)) return ContainerTarget(text, places);
  STASIS_ASSIGN(auto resolved, jobs::Store(paths.jobs()).ResolveTarget(text));
  if (resolved.root.pid.value == 0) {
    return Fail(
        Code::kFailedPrecondition,
        fmt::format("job {} is not running ({})", text, jobs::StateName(resolved.job->state)),
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
