#include "jobs/manage.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "base/caller.h"
#include "base/file.h"
#include "jobs/agent_library.h"
#include "jobs/record.h"
#include "process/host_name.h"
#include "process/identity.h"
#include "process/memory.h"
#include "process/search.h"
#include "process/tree.h"

namespace stasis::jobs {
namespace {

using process::HostPid;
using process::Stat;

// File names of Stasis programs.
constexpr std::string_view kOurPrograms[] = {"stasis",
                                             "stasisd",
                                             "stasis-shim",
                                             "stasis-worker",
                                             "stasis-mover",
                                             "stasis-device-helper",
                                             "stasis-criu-inside",
                                             "stasis-agent-probe"};
constexpr std::string_view kShimName = "stasis-shim";
constexpr std::string_view kDeleted = " (deleted)";

std::string WithoutDeleted(std::string path) {
  if (path.ends_with(kDeleted)) path.resize(path.size() - kDeleted.size());
  return path;
}

std::string_view FileName(std::string_view path) { return path.substr(path.rfind('/') + 1); }

// A check that returns an error for a process that cannot become a job.
using Refusal = Status (*)(const Stat& stat);

Status RefuseInit(const Stat& stat) {
  if (stat.id.pid.value != 1) return {};
  return Fail(Code::kUnimplemented,
              "process 1 is the machine's init process and cannot become a job");
}

Status RefuseKernelThread(const Stat& stat) {
  if (!stat.kernel_thread) return {};
  return Fail(Code::kUnimplemented, Describe(stat) + " is a kernel thread and cannot become a job");
}

Status RefuseEnded(const Stat& stat) {
  if (process::IsAlive(stat)) return {};
  return Fail(Code::kNotFound, Describe(stat) + " has ended, but its parent has not reaped it");
}

Status RefuseForeign(const Stat& stat) { return process::CheckOwn(stat, Caller::Self()); }

Status RefuseAbove(const Stat& stat) { return CheckNotAbove(stat.id.pid); }

Status RefuseOurs(const Stat& stat) {
  auto file = process::ReadExecutable(stat.id.pid);
  if (!file) return {};
  const std::string path = WithoutDeleted(std::move(*file));
  if (std::find(std::begin(kOurPrograms), std::end(kOurPrograms), FileName(path)) ==
      std::end(kOurPrograms)) {
    return {};
  }
  return Fail(Code::kUnimplemented, Describe(stat) + " is a Stasis program",
              "name the program that it works for");
}

constexpr Refusal kRefusals[] = {RefuseInit,    RefuseKernelThread, RefuseEnded,
                                 RefuseForeign, RefuseAbove,        RefuseOurs};

tl::unexpected<Error> InJob(const std::string& who, const std::string& id) {
  return Fail(Code::kAlreadyExists, who + " is in job " + id + " already",
              "use the job's name; `stasis inspect " + id + "` shows it");
}

// Returns an error if the program runs below a shim. Jobs of other users are in other stores, but
// their shims are visible.
Status CheckBelowNoShim(const Stat& root) {
  for (const Stat& ancestor : process::ReadLineage(root.parent)) {
    if (!IsShim(ancestor)) continue;
    return Fail(Code::kAlreadyExists,
                Describe(root) +
                    " already belongs to a job of another user or another state folder, whose shim "
                    "is process " +
                    ToString(ancestor.id.pid),
                "`stasis ps`, run by the user who started it, lists it");
  }
  return {};
}

// Neither the program, nor an ancestor, nor a descendant may belong to a job.
Status CheckInNoJob(const Store& store, const process::ProcessTree& tree) {
  const Stat& root = tree.root();
  STASIS_ASSIGN(auto above, store.FindByProcess(root.id.pid));
  if (above) return InJob(Describe(root), above->id);
  STASIS_TRY(CheckBelowNoShim(root));
  STASIS_ASSIGN(auto jobs, store.List());
  for (const auto& listed : jobs) {
    if (!listed.job || !listed.job->processes) continue;
    const Processes& processes = *listed.job->processes;
    for (const Stat& member : tree.members) {
      if (member.id != processes.root && member.id != processes.shim) continue;
      return InJob(Describe(member) + ", which runs below process " + ToString(root.id.pid) + ",",
                   listed.id);
    }
  }
  return {};
}

Status CheckTreeIsOwn(const process::ProcessTree& tree) {
  for (const Stat& member : tree.members) {
    Status own = process::CheckOwn(member, Caller::Self());
    // A process that has ended meanwhile belongs to no user.
    if (!own && own.error().code != Code::kNotFound) return own;
  }
  return {};
}

// Returns the arguments of the process. The process controls them; if they cannot be stored,
// returns the name of the process instead.
std::vector<std::string> CommandOf(const Stat& stat) {
  auto argv = process::ReadCommandLine(stat.id.pid, Deadline::In(process::kMemoryAnswer));
  const bool fits = argv && !argv->empty() && argv->size() <= kMaxArguments &&
                    std::all_of(argv->begin(), argv->end(), [](const std::string& argument) {
                      return argument.size() <= kMaxArgumentBytes;
                    });
  return fits ? std::move(*argv) : std::vector<std::string>{stat.comm};
}

std::string DirectoryOf(HostPid pid) {
  auto path = ReadLink("/proc/" + ToString(pid) + "/cwd");
  const bool fits = path && path->starts_with('/') && path->size() <= kMaxPathBytes;
  return fits ? WithoutDeleted(std::move(*path)) : "/";
}

// Returns the path of the agent's library, or an empty string if the process is running without the
// agent.
std::string AgentIn(HostPid pid) {
  auto mappings = process::ReadMappings(pid);
  if (!mappings) return {};
  for (const auto& mapping : *mappings) {
    std::string path = WithoutDeleted(mapping.path);
    if (path.starts_with('/') && path.size() <= kMaxPathBytes &&
        FileName(path) == kAgentLibraryName)
      return path;
  }
  return {};
}

}  // namespace

bool IsShim(const Stat& stat) { return stat.comm == kShimName && process::IsAlive(stat); }

Status CheckNotAbove(HostPid pid) {
  for (const Stat& stat : process::ReadLineage({::getpid()})) {
    if (stat.id.pid != pid) continue;
    return Fail(Code::kUnimplemented,
                pid.value == ::getpid() ? "process " + ToString(pid) + " is this command itself"
                                        : Describe(stat) + " is an ancestor of this command",
                "name another program, or run the command outside of this one, for example in "
                "another terminal");
  }
  return {};
}

Status CheckHasOutput(const Job& job, const std::string& what) {
  if (!IsAdopted(job)) return {};
  return Fail(
      Code::kFailedPrecondition,
      "cannot " + what + " job " + job.id + ": it was adopted as process " +
          ToString(job.processes->root.pid) +
          ", which Stasis did not start, so Stasis has neither its log nor its terminal",
      "its output still goes where it went when it started; after `stasis dump` and `stasis "
      "restore` the job has both");
}

Result<HostPid> ParsePid(const std::string& text) {
  pid_t pid = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), pid);
  if (error == std::errc() && end == text.data() + text.size() && pid > 0) return HostPid{pid};
  return Fail(Code::kInvalidArgument, Domain::kUsage, 0,
              "'" + text.substr(0, kMaxIdLength) + "' is not a process id",
              "give the process id of the program; `pgrep NAME` finds it");
}

Result<Job> Manage(const Store& store, const ManageRequest& request) {
  STASIS_TRY(process::CheckNotThread(request.pid));
  STASIS_ASSIGN(const Stat root, process::ReadStat(request.pid));
  for (Refusal refuse : kRefusals) STASIS_TRY(refuse(root));

  NewJob wanted;
  wanted.id = request.id;
  wanted.most_jobs = request.most_jobs;
  wanted.argv = CommandOf(root);
  wanted.cwd = DirectoryOf(root.id.pid);
  wanted.agent = AgentIn(root.id.pid);
  wanted.share = request.share;
  wanted.adopted = Processes{};
  wanted.adopted->root = root.id;
  STASIS_ASSIGN(wanted.adopted->boot_id, process::BootId());
  wanted.adopted->host = process::HostName();
  wanted.check = [&]() -> Status {
    STASIS_ASSIGN(auto tree, process::ReadTree(root.id.pid));
    STASIS_TRY(CheckTreeIsOwn(tree));
    STASIS_TRY(CheckInNoJob(store, tree));
    // Confirms that everything above was read from this process and not from a later one with its
    // pid.
    return process::OpenPidfd(root.id).transform([](const UniqueFd&) {});
  };
  STASIS_ASSIGN(Claim claim, store.Create(wanted));
  if (Status confirmed = request.confirm ? request.confirm(root.id) : Status(); !confirmed) {
    STASIS_TRY(claim.Discard());
    return Fail(std::move(confirmed).error());
  }
  return claim.job();
}

}  // namespace stasis::jobs
