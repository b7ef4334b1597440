#include "checks/pids.h"

#include <fmt/format.h>

#include <chrono>

#include "base/deadline.h"
#include "checkpoint/program_pids.h"
#include "gpu_state/services.h"
#include "jobs/store.h"
#include "process/end.h"
#include "process/namespace.h"

namespace stasis::checks {
namespace {

constexpr std::chrono::seconds kDyingTimeout{15};
constexpr char kOrNewPidns[] = "; or restore into a new pid namespace with --new-pidns";

// Returns the process that has the pid. Waits for a process that has been killed: it takes a while
// to end, because its GPU memory has to be freed, and keeps its pid until its parent has reaped it.
Result<process::Stat> StatOnceDead(process::HostPid pid) {
  Deadline deadline = Deadline::In(kDyingTimeout);
  for (;;) {
    auto stat = process::ReadStat(pid);
    if (!stat || process::IsAlive(*stat) || deadline.passed()) return stat;
    (void)process::WaitUntilReaped(stat->id, deadline);
  }
}

Status CheckPidFree(const store::Process& p) {
  const pid_t pid = p.restored_pid();
  auto taken = StatOnceDead({pid});
  if (!taken && process::IsThreadOfAnother(pid)) {
    return Fail(Code::kAborted, fmt::format("process id {} of the image is taken by a thread", pid),
                std::string("end that program") + kOrNewPidns);
  }
  if (!taken) return {};
  if (taken->state == 'Z') {
    return Fail(
        Code::kAborted,
        fmt::format(
            "process id {} of the image is still taken by {}, a zombie that its parent, process "
            "{}, has not reaped",
            pid, taken->comm, taken->parent.value),
        std::string("have that parent reap it, or end that parent") + kOrNewPidns);
  }
  const bool same = taken->id.start_time == p.start_ticks;
  return Fail(Code::kAborted,
              fmt::format("process id {} of the image is taken by {}{}", pid, taken->comm,
                          same ? ": the program itself is still running" : ""),
              (same ? std::string("end it first")
                    : std::string("a program is restored with its old process ids: end that "
                                  "process")) +
                  kOrNewPidns);
}

}  // namespace

Status CheckPidsFree(const store::Manifest& manifest) {
  if (checkpoint::BringsItsPidNamespace(manifest)) return {};
  for (const auto& p : manifest.processes) STASIS_TRY(CheckPidFree(p));
  return {};
}

Result<bool> LivesInJobsPidNamespace(const gpu_state::Services& services, const Survey& survey) {
  const process::HostPid root = survey.tree.root().id.pid;
  STASIS_ASSIGN(bool elsewhere, process::IsInOtherPidNamespace(root));
  if (!elsewhere) return false;
  STASIS_ASSIGN(pid_t inner, process::ReadInnerPid(root));
  if (inner == 1) return false;  // CRIU saves this namespace too
  STASIS_ASSIGN(uint64_t pid_namespace, process::ReadNamespace(root, "pid"));
  STASIS_ASSIGN(process::HostPid init, process::FindByInnerPid(pid_namespace, 1));
  if (!survey.target.job.empty()) {
    STASIS_ASSIGN(auto job, jobs::Store(services.paths.jobs()).Load(survey.target.job));
    if (job.processes && job.has_shim && job.processes->shim.pid == init) return true;
  }
  return Fail(
      Code::kUnimplemented,
      fmt::format("process {} is in the pid namespace of process {}, and CRIU cannot save it from "
                  "outside",
                  root.value, init.value),
      fmt::format("run stasis inside that namespace, for example in a shell of the container, or "
                  "with `nsenter -t {} -p -m stasis …`",
                  init.value));
}

}  // namespace stasis::checks
