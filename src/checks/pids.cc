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
constexpr char kOrBeside[] =
    "; or restore it with --new-pidns, in a pid namespace of its own, where every number is free";

// A program that was just killed may still be dying: giving back its GPU memory takes a while, and
// a zombie keeps its number until its parent has reaped it.
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
                std::string("end that program") + kOrBeside);
  }
  if (!taken) return {};
  if (taken->state == 'Z') {
    return Fail(
        Code::kAborted,
        fmt::format(
            "process id {} of the image is still taken by {}, which has ended and waits for its "
            "parent {} to notice",
            pid, taken->comm, taken->parent.value),
        std::string("make that parent wait for it, or end that parent") + kOrBeside);
  }
  const bool same = taken->id.start_time == p.start_ticks;
  return Fail(Code::kAborted,
              fmt::format("process id {} of the image is taken by {}{}", pid, taken->comm,
                          same ? ", which is the program itself: it still runs" : ""),
              (same ? std::string("end it first if it is to go back to the image")
                    : std::string("a program comes back under its old process ids: end that "
                                  "process")) +
                  kOrBeside);
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
  if (inner == 1) return false;  // a namespace that CRIU saves with it
  STASIS_ASSIGN(uint64_t pid_namespace, process::ReadNamespace(root, "pid"));
  STASIS_ASSIGN(process::HostPid init, process::FindByInnerPid(pid_namespace, 1));
  if (!survey.target.job.empty()) {
    STASIS_ASSIGN(auto job, jobs::Store(services.paths.jobs()).Load(survey.target.job));
    if (job.processes && job.has_shim && job.processes->shim.pid == init) return true;
  }
  return Fail(
      Code::kUnimplemented,
      fmt::format("process {} lives in the pid namespace of process {}, in which CRIU could "
                  "not save it from here",
                  root.value, init.value),
      fmt::format("run stasis in there, as in a container's shell; or `nsenter -t {} -p -m "
                  "stasis …`",
                  init.value));
}

}  // namespace stasis::checks
