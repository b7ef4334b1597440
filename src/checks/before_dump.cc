#include "checks/before_dump.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/file.h"
#include "checks/other_jobs.h"
#include "checks/pids.h"
#include "checks/readable.h"
#include "containers/identify.h"
#include "criu/preflight.h"
#include "device/hip/criu_plugin.h"
#include "device/hip/hip_driver.h"
#include "gpu_state/services.h"
#include "jobs/store.h"
#include "plan/journal.h"
#include "process/namespace.h"
#include "store/image_folder.h"
#include "store/store_folder.h"

namespace stasis::checks {
namespace {

using gpu_state::Services;

constexpr std::chrono::seconds kProbeTimeout{10};

struct Context {
  Services& services;
  criu::Criu& criu;
  const Survey& survey;
  const bool leave_running;
  DumpFacts& facts;
};

Status FindCriu(Context& c) {
  const std::string& named = c.services.settings.criu;
  STASIS_ASSIGN(c.facts.criu_path, c.criu.Find(named));
  STASIS_ASSIGN(c.facts.criu_version, c.criu.Version(named, Deadline::In(kProbeTimeout)));
  return {};
}

Status CheckReadable(Context& c) {
  return CheckStateReadable(c.survey.tree.members,
                            ReadingDeadline(c.services.settings.phase_timeout_s));
}

// Checks that CRIU can read the limits of each process with prlimit(2). The kernel permits this
// only to a process with the same user and group ids, or with CAP_SYS_RESOURCE.
Status CheckLimits(Context& c) {
  for (const auto& member : c.survey.tree.members) {
    rlimit limit{};
    if (::prlimit(member.id.pid.value, RLIMIT_NOFILE, nullptr, &limit) == 0 || errno != EPERM) {
      continue;
    }
    return Fail(
        Code::kPermissionDenied,
        fmt::format("process {} ({}) belongs to another user, and CRIU needs CAP_SYS_RESOURCE "
                    "to read its limits",
                    member.id.pid.value, member.comm),
        "in a container, start the container with --cap-add SYS_RESOURCE; or dump the program as "
        "that user (docs/security.md)");
  }
  return {};
}

Status CheckOtherJobs(Context& c) {
  STASIS_ASSIGN(const plan::Operation dump, c.survey.ToOperation("dump"));
  return CheckEndsNoOtherJob(c.services.paths, dump.job, dump.members, c.leave_running);
}

// The mounts, devices and networks of a container belong to its runtime. Only the runtime can
// restore them.
tl::unexpected<Error> FailInContainer(const process::Stat& member,
                                      const containers::Identity& container) {
  return Fail(Code::kUnimplemented,
              fmt::format("process {} ({}) runs in {}, and only its runtime can restore that",
                          member.id.pid.value, member.comm, container.description),
              containers::CommandInstead(container, "dump"));
}

Status CheckPidNamespace(Context& c) {
  auto in_jobs = LivesInJobsPidNamespace(c.services, c.survey);
  if (!in_jobs && in_jobs.error().code == Code::kUnimplemented) {
    const process::Stat& root = c.survey.tree.root();
    if (auto container = containers::IdentifyContainer(root.id.pid)) {
      return FailInContainer(root, *container);
    }
  }
  STASIS_ASSIGN(c.facts.in_own_pidns, std::move(in_jobs));
  return {};
}

// Refuses a program that has its own mount namespace. CRIU can save it, but Stasis cannot restore
// it: the dump would succeed and end the program, and the image would be useless.
Status CheckMountNamespace(Context& c) {
  process::HostPid criu{::getpid()};
  if (c.facts.in_own_pidns) {
    STASIS_ASSIGN(const uint64_t pid_namespace,
                  process::ReadNamespace(c.survey.tree.root().id.pid, "pid"));
    STASIS_ASSIGN(criu, process::FindByInnerPid(pid_namespace, 1));
  }
  STASIS_ASSIGN(const uint64_t expected, process::ReadNamespace(criu, "mnt"));
  for (const auto& member : c.survey.tree.members) {
    auto found = process::ReadNamespace(member.id.pid, "mnt");
    if (!found || *found == expected) continue;  // zombies have none
    if (auto container = containers::IdentifyContainer(member.id.pid)) {
      return FailInContainer(member, *container);
    }
    return Fail(
        Code::kUnimplemented,
        fmt::format("process {} ({}) has its own mount namespace, as in a container, and could "
                    "not be restored",
                    member.id.pid.value, member.comm),
        "checkpoint a container with its runtime: `stasis dump podman:NAME`, `containerd:ID` or "
        "`runc:ID`; or use `stasis suspend` and `stasis resume` instead of a dump");
  }
  return {};
}

// The driver cannot checkpoint the context of a HIP program, so CRIU's plugin for AMD GPUs saves
// it. It is loaded for such programs only.
Status CheckCriuPlugin(Context& c) {
  const device::DeviceProcess* hip = nullptr;
  const device::DeviceProcess* other = nullptr;
  for (const auto& p : c.survey.device_processes) (p.no_checkpoint ? hip : other) = &p;
  if (hip == nullptr) return {};
  if (other != nullptr) {
    return Fail(
        Code::kUnimplemented,
        fmt::format("process {} uses HIP and process {} uses CUDA: one image cannot contain "
                    "both",
                    hip->id.pid.value, other->id.pid.value),
        "`stasis suspend` and `stasis resume` work");
  }
  STASIS_ASSIGN(const device::DriverInfo driver, c.services.device->Driver());
  if (!device::hip::IsHipDriver(driver.kind)) {
    return Fail(Code::kUnimplemented,
                fmt::format("process {} uses HIP, and Stasis uses the driver {} on this machine",
                            hip->id.pid.value, driver.kind),
                "set STASIS_CUDA_LIBRARY to the path of HIP's library (docs/amd.md)");
  }
  STASIS_TRY(device::hip::CheckKernelDriver(driver.kind));
  STASIS_ASSIGN(c.facts.criu_plugins, device::hip::FindCriuPlugin(driver.kind));
  STASIS_ASSIGN(c.facts.gpu_topology, device::hip::ReadTopology(driver.kind));
  return {};
}

Status PlanStdio(Context& c) {
  STASIS_ASSIGN(c.facts.stdio, criu::PlanStdio(c.survey.tree, LogOf(c.services, c.survey.target)));
  return {};
}

struct DumpCheck {
  const char* id;
  Status (*run)(Context&);
};
constexpr DumpCheck kDumpChecks[] = {
    {"program-answers", CheckReadable},
    {"privileges", [](Context& c) { return c.criu.CheckPrivileges(); }},
    {"resource-limits", CheckLimits},
    {"criu", FindCriu},
    {"gpu-files", [](Context& c) { return CheckOnlyDeviceUsers(c.services, c.survey); }},
    {"gpu-driver", CheckCriuPlugin},
    {"other-job", CheckOtherJobs},
    {"background", [](Context& c) { return CheckNothingOutside(c.survey); }},
    {"pid-namespace", CheckPidNamespace},
    {"mount-namespace", CheckMountNamespace},  // uses the result of pid-namespace
    {"stdio", PlanStdio},
};

// Returns true if the store has an earlier image of the job.
bool HasEarlierImage(const Paths& paths, const std::string& job, const std::string& store) {
  if (job.empty()) return false;
  auto loaded = jobs::Store(paths.jobs()).Load(job);
  if (!loaded) return false;
  auto is_there = [&](const jobs::Checkpoint& checkpoint) {
    return checkpoint.image.substr(0, checkpoint.image.rfind('/')) == AbsolutePath(store) &&
           PathExists(checkpoint.image + "/" + store::kManifestName);
  };
  return std::any_of(loaded->checkpoints.begin(), loaded->checkpoints.end(), is_there);
}

}  // namespace

Result<DumpFacts> CheckBeforeDump(Services& services, criu::Criu& criu, const Survey& survey,
                                  const criu::Options& given, bool leave_running,
                                  std::vector<Refused>* refused) {
  DumpFacts facts;
  Context context{services, criu, survey, leave_running, facts};
  for (const DumpCheck& check : kDumpChecks) {
    Status status = check.run(context);
    if (status) continue;
    if (refused == nullptr) return Fail(std::move(status).error());
    refused->push_back({check.id, std::move(status).error()});
  }
  criu::Options options = given;
  options.plugins = facts.criu_plugins;
  if (refused == nullptr) {
    STASIS_TRY(criu::Preflight(survey.tree, options, facts.stdio));
    return facts;
  }
  STASIS_ASSIGN(auto obstacles, criu::FindObstacles(survey.tree, options, facts.stdio));
  for (const auto& found : obstacles) refused->push_back({found.name, criu::ToError(found)});
  return facts;
}

Status CheckImageSpace(const Services& services, const Survey& survey, const std::string& store,
                       bool full, uint64_t carried_bytes) {
  const std::string folder = ExistingPart(AbsolutePath(store));
  if (::access(folder.c_str(), W_OK) != 0) {
    return FailErrno(errno, "write images to " + store);
  }
  uint64_t bytes = survey.device_bytes() + survey.device_bytes(/*suspended=*/true);
  if (!full && HasEarlierImage(services.paths, survey.target.job, store)) {
    bytes -= std::min(bytes, carried_bytes);
  }
  return store::CheckSpace(folder, bytes);
}

}  // namespace stasis::checks
