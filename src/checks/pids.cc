#include "checks/pids.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <optional>

#include "base/deadline.h"
#include "checkpoint/program_pids.h"
#include "gpu_state/services.h"
#include "ipc/pidns_init.h"
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

struct Taken {
  Error error;
  bool by_itself = false;  // the program is still running
};

std::optional<Taken> FindTaken(const store::Process& p) {
  const pid_t pid = p.restored_pid();
  auto refuse = [](std::string message, std::string hint, bool by_itself = false) {
    Error error{Code::kAborted, Domain::kStasis, 0, std::move(message), {}, {}, false};
    error.hint = std::move(hint) + kOrNewPidns;
    return Taken{std::move(error), by_itself};
  };
  auto taken = StatOnceDead({pid});
  if (!taken && process::IsThreadOfAnother(pid)) {
    return refuse(fmt::format("process id {} of the image is taken by a thread", pid),
                  "end that program");
  }
  if (!taken) return std::nullopt;
  if (taken->state == 'Z') {
    return refuse(
        fmt::format(
            "process id {} of the image is still taken by {}, a zombie that its parent, process "
            "{}, has not reaped",
            pid, taken->comm, taken->parent.value),
        "have that parent reap it, or end that parent");
  }
  const bool same = taken->id.start_time == p.start_ticks;
  return refuse(
      fmt::format("process id {} of the image is taken by {}{}", pid, taken->comm,
                  same ? ": the program itself is still running" : ""),
      same ? "end it first" : "a program is restored with its old process ids: end that process",
      same);
}

// Returns why the program cannot be restored in this pid namespace. Prefers a process of the
// program itself.
std::optional<Taken> FindTaken(const store::Manifest& manifest) {
  std::optional<Taken> first;
  if (checkpoint::BringsItsPidNamespace(manifest)) return first;
  for (const auto& p : manifest.processes) {
    auto taken = FindTaken(p);
    if (taken && taken->by_itself) return taken;
    if (!first) first = std::move(taken);
  }
  return first;
}

}  // namespace

Status CheckPidsFree(const store::Manifest& manifest) {
  auto taken = FindTaken(manifest);
  if (taken) return Fail(std::move(taken->error));
  return {};
}

bool NeedsPidNamespace(const store::Manifest& manifest) {
  const auto taken = FindTaken(manifest);
  return taken && !taken->by_itself;
}

Result<bool> LivesInJobsPidNamespace(const gpu_state::Services& services, const Survey& survey) {
  const process::HostPid root = survey.tree.root().id.pid;
  STASIS_ASSIGN(bool elsewhere, process::IsInOtherPidNamespace(root));
  if (!elsewhere) return false;
  STASIS_ASSIGN(pid_t inner, process::ReadInnerPid(root));
  if (inner == 1) return false;  // CRIU saves this namespace too
  STASIS_ASSIGN(uint64_t pid_namespace, process::ReadNamespace(root, "pid"));
  const ipc::PidnsInit* ours = ipc::PidnsInit::Get();
  if (ours != nullptr && ours->pid_namespace() == pid_namespace) return true;
  STASIS_ASSIGN(process::HostPid init, process::FindByInnerPid(pid_namespace, 1));
  if (!survey.target.job.empty()) {
    STASIS_ASSIGN(auto job, jobs::Store(services.paths.jobs()).Load(survey.target.job));
    auto shims = job.processes && job.has_shim
                     ? process::ReadNamespace(job.processes->shim.pid, "pid")
                     : Result<uint64_t>(0);
    if (shims && *shims == pid_namespace) {
      if (::geteuid() == 0) return true;
      return Fail(Code::kPermissionDenied,
                  "only root, and the task of Slurm in which the program runs, can start CRIU in "
                  "the program's pid namespace",
                  "`scontrol requeue` and `scancel` dump the program; `stasis suspend` works");
    }
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
