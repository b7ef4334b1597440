#include "coordinator/other_jobs.h"

#include <fmt/format.h>

#include <algorithm>

#include "jobs/store.h"

namespace stasis::coordinator {

Status CheckEndsNoOtherJob(const Paths& paths, const std::string& own,
                           const std::vector<process::ProcessId>& members, bool leave_running) {
  auto jobs = jobs::Store(paths.jobs()).List();
  if (!jobs) {
    const Code code = jobs.error().code;
    // As where a target is looked up: programs are reached while nobody can read what jobs there
    // are.
    if (code == Code::kDataLoss || code == Code::kUnimplemented) return {};
    return Fail(std::move(jobs).error());
  }
  auto is_member = [&](const process::ProcessId& id) {
    return std::find(members.begin(), members.end(), id) != members.end();
  };
  STASIS_ASSIGN(const std::string boot_id, process::BootId());
  for (const auto& listed : *jobs) {
    if (!listed.job || listed.id == own) continue;
    const auto& known = listed.job->processes;
    if (!known || known->boot_id != boot_id) continue;
    const jobs::Processes& processes = *known;
    const bool shim = is_member(processes.shim) && process::IsAlive(processes.shim);
    const bool root = is_member(processes.root) && !jobs::HasEnded(listed.job->state);
    if (!shim && (!root || leave_running)) continue;
    const std::string who = fmt::format("process {} of it is {}job {}",
                                        (shim ? processes.shim : processes.root).pid.value,
                                        shim ? "the shim of " : "", listed.id);
    return Fail(Code::kFailedPrecondition,
                leave_running
                    ? who + ", of which there may be no copy"
                    : who + ": the dump would end that job too, which would know of no image",
                fmt::format("`stasis dump {0}` first, or end it (`stasis kill {0}`){1}", listed.id,
                            shim ? "" : "; with --leave-running nothing is ended"));
  }
  return {};
}

}  // namespace stasis::coordinator
