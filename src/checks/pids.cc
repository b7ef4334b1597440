#include "checks/pids.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <optional>

#include "base/deadline.h"
#include "checkpoint/program_pids.h"
#include "gpu_state/services.h"
#include "ipc/pidns_init.h"
#include "jobs/store.h"
#include "process/end.h"
#include "process/namespace.h"
#include "store/manifest.h"

namespace stasis::checks {
namespace {

constexpr std::chrono::seconds kDyingTimeout{15};

// The end of a hint. Only root can use --new-pidns.
const char* OrNewPidns() {
  if (::geteuid() == 0) return "; or restore into a new pid namespace with --new-pidns";
  return "; or let root restore it with --new-pidns; in a task of Slurm omit --stasis=nopidns";
}

// The main thread of a program may end before the others.
bool HasOtherThreads(const process::Stat& stat) {
  auto threads = process::ReadThreads(stat.id.pid);
  return threads && threads->size() > 1;
}

bool IsDying(const process::Stat& stat) {
  return !process::IsAlive(stat) && (process::WasKilled(stat.id) || !HasOtherThreads(stat));
}

// Returns the process that has the pid. Waits for a process that has been killed: it takes a while
// to end, because its GPU memory has to be freed, and keeps its pid until its parent has reaped it.
Result<process::Stat> StatOnceDead(process::HostPid pid) {
  Deadline deadline = Deadline::In(kDyingTimeout);
  for (;;) {
    auto stat = process::ReadStat(pid);
    if (!stat || !IsDying(*stat) || deadline.passed()) return stat;
    (void)process::WaitUntilReaped(stat->id, deadline);
  }
}

struct Taken {
  Error error;
  bool by_itself = false;  // the program is still running
};

// Returns the process that was dumped, if it is still here. An image of a program in a pid
// namespace has the start time of the process with the pid outside.
Result<process::Stat> FindDumped(const store::Process& p) {
  auto stat = process::ReadStat({p.pid});
  if (!stat || stat->id.start_time != p.start_ticks) return Fail(Code::kNotFound, "it has ended");
  return StatOnceDead({p.pid});
}

std::optional<Taken> FindTaken(const store::Process& p, bool of_this_boot) {
  const pid_t pid = p.restored_pid();
  auto refuse = [](std::string message, std::string hint, bool by_itself = false) {
    Error error{Code::kAborted, Domain::kStasis, 0, std::move(message), {}, {}, false};
    error.hint = std::move(hint) + OrNewPidns();
    return Taken{std::move(error), by_itself};
  };
  auto refuse_itself = [&](const process::Stat& stat) {
    return refuse(fmt::format("process id {} of the image is taken by {}: the program itself is "
                              "still running",
                              stat.id.pid.value, stat.comm),
                  "end it first", /*by_itself=*/true);
  };
  auto runs = [&](const Result<process::Stat>& stat) {
    return stat && stat->id.start_time == p.start_ticks &&
           (stat->state != 'Z' || HasOtherThreads(*stat));
  };
  if (pid != p.pid && of_this_boot) {
    if (const auto dumped = FindDumped(p); runs(dumped)) return refuse_itself(*dumped);
  }
  auto taken = StatOnceDead({pid});
  if (runs(taken)) return refuse_itself(*taken);
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
  return refuse(fmt::format("process id {} of the image is taken by {}", pid, taken->comm),
                "a program is restored with its old process ids: end that process");
}

// Returns why the program cannot be restored in this pid namespace. Prefers a process of the
// program itself.
std::optional<Taken> FindTaken(const store::Manifest& manifest) {
  std::optional<Taken> first;
  if (checkpoint::BringsItsPidNamespace(manifest)) return first;
  const bool of_this_boot = manifest.host.boot_id == store::HostNow().boot_id;
  for (const auto& p : manifest.processes) {
    auto taken = FindTaken(p, of_this_boot);
    if (taken && taken->by_itself) return taken;
    if (!first) first = std::move(taken);
  }
  return first;
}

// Sees also what hidepid of /proc hides.
bool IsTaken(pid_t id) {
  auto exists = [](pid_t target) { return ::kill(target, 0) == 0 || errno == EPERM; };
  return id > 1 && (exists(id) || exists(-id));
}

}  // namespace

Status CheckPidsFree(const store::Manifest& manifest) {
  auto taken = FindTaken(manifest);
  if (taken) return Fail(std::move(taken->error));
  return {};
}

bool NeedsPidNamespace(const store::Manifest& manifest, const std::set<pid_t>& ids) {
  const auto taken = FindTaken(manifest);
  if (taken) return !taken->by_itself;
  return !checkpoint::BringsItsPidNamespace(manifest) &&
         std::any_of(ids.begin(), ids.end(), IsTaken);
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
      const auto first = process::ReadStat(init);
      const bool of_slurm = first && first->comm == ipc::kPidnsComm;
      return Fail(Code::kPermissionDenied,
                  fmt::format("only root{} can start CRIU in the program's pid namespace",
                              of_slurm ? ", and the task of Slurm in which the program runs," : ""),
                  of_slurm ? "`scontrol requeue` and `scancel` dump the program; `stasis suspend` "
                             "works"
                           : "run it as root; `stasis suspend` works");
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
