#include "checks/other_jobs.h"

#include <fmt/format.h>

#include <algorithm>

#include "jobs/manage.h"
#include "jobs/store.h"
#include "process/memory.h"

namespace stasis::checks {
namespace {

tl::unexpected<Error> Refuse(const std::string& who, bool leave_running, const std::string& hint) {
  return Fail(Code::kFailedPrecondition,
              leave_running
                  ? who + ", and an image must not contain a shim"
                  : who + ": the dump would end that job too, and its record would have no image",
              hint);
}

Status CheckOfThisStore(const Paths& paths, const std::string& own,
                        const std::vector<process::ProcessId>& members, bool leave_running) {
  auto jobs = jobs::Store(paths.jobs()).List();
  if (!jobs) {
    const Code code = jobs.error().code;
    // An unreadable database does not prevent the dump, because a target can be given by its pid.
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
    const std::string who = fmt::format("process {} of the target is {}job {}",
                                        (shim ? processes.shim : processes.root).pid.value,
                                        shim ? "the shim of " : "", listed.id);
    return Refuse(who, leave_running,
                  fmt::format("dump it first (`stasis dump {0}`), or end it (`stasis kill {0}`){1}",
                              listed.id, shim ? "" : "; or use --leave-running"));
  }
  return {};
}

// Names the user and folder of a shim's job: "user 1000 (/home/ann/.local/state/stasis/jobs/x)".
std::string Keeper(process::HostPid shim) {
  auto credentials = process::ReadCredentials(shim);
  std::string text =
      credentials ? fmt::format("user {}", credentials->uid[0]) : std::string("another user");
  const auto arguments = process::ReadCommandLine(shim, Deadline::In(process::kMemoryAnswer))
                             .value_or(std::vector<std::string>());
  auto option = std::find(arguments.begin(), arguments.end(), "--job-dir");
  if (option != arguments.end() && ++option != arguments.end()) text += " (" + *option + ")";
  return text;
}

Status CheckOfOtherStores(const std::vector<process::ProcessId>& members, bool leave_running) {
  for (const auto& id : members) {
    auto stat = process::ReadStat(id.pid);
    if (!stat || stat->id != id || !jobs::IsShim(*stat)) continue;
    return Refuse(
        fmt::format("process {} of the target is the shim of a job of {}, which is not in "
                    "this state folder",
                    id.pid.value, Keeper(id.pid)),
        leave_running,
        "dump it first (`stasis dump`), or end it (`stasis kill`), as the user whose "
        "`stasis ps` lists it");
  }
  return {};
}

}  // namespace

Status CheckEndsNoOtherJob(const Paths& paths, const std::string& own,
                           const std::vector<process::ProcessId>& members, bool leave_running) {
  STASIS_TRY(CheckOfThisStore(paths, own, members, leave_running));
  return CheckOfOtherStores(members, leave_running);
}

}  // namespace stasis::checks
