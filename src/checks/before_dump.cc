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
#include "criu/preflight.h"
#include "criu/probe.h"
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

struct Asking {
  Services& services;
  const Survey& survey;
  const bool leave_running;
  BeforeDump& answer;
};

Status AskCriu(Asking& a) {
  const std::string& named = a.services.settings.criu;
  STASIS_ASSIGN(a.answer.criu_path, criu::FindCriu(named));
  STASIS_ASSIGN(a.answer.criu_version, criu::FoundVersion(named, Deadline::In(kProbeTimeout)));
  return {};
}

Status AskReadable(Asking& a) {
  return CheckStateReadable(a.survey.tree.members,
                            ReadingDeadline(a.services.settings.phase_timeout_s));
}

Status AskPrivileges(Asking&) { return criu::CheckPrivileges(); }

// CRIU reads the limits of each process, as this does. The kernel allows that to a process with the
// same user and group ids, or with CAP_SYS_RESOURCE.
Status AskLimits(Asking& a) {
  for (const auto& member : a.survey.tree.members) {
    rlimit limit{};
    if (::prlimit(member.id.pid.value, RLIMIT_NOFILE, nullptr, &limit) == 0 || errno != EPERM) {
      continue;
    }
    return Fail(Code::kPermissionDenied,
                fmt::format("process {} ({}) is another user's, and this command has no "
                            "CAP_SYS_RESOURCE, which CRIU needs to read its limits",
                            member.id.pid.value, member.comm),
                "in a container, start that with --cap-add SYS_RESOURCE; or have that user dump it "
                "(docs/security.md)");
  }
  return {};
}

Status AskGpuFiles(Asking& a) { return CheckOnlyDeviceUsers(a.services, a.survey); }

Status AskOtherJobs(Asking& a) {
  STASIS_ASSIGN(const plan::Operation dump, a.survey.ToOperation("dump"));
  return CheckEndsNoOtherJob(a.services.paths, dump.job, dump.members, a.leave_running);
}

Status AskBackground(Asking& a) { return CheckNothingOutside(a.survey); }

Status AskPidNamespace(Asking& a) {
  STASIS_ASSIGN(a.answer.in_own_pidns, LivesInJobsPidNamespace(a.services, a.survey));
  return {};
}

// CRIU saves a mount namespace of the program's own, but Stasis cannot have it restored: the dump
// would succeed, end the program, and its image would be of no use.
Status AskMountNamespace(Asking& a) {
  process::HostPid criu{::getpid()};
  if (a.answer.in_own_pidns) {
    STASIS_ASSIGN(const uint64_t pid_namespace,
                  process::ReadNamespace(a.survey.tree.root().id.pid, "pid"));
    STASIS_ASSIGN(criu, process::FindByInnerPid(pid_namespace, 1));
  }
  STASIS_ASSIGN(const uint64_t expected, process::ReadNamespace(criu, "mnt"));
  for (const auto& member : a.survey.tree.members) {
    auto found = process::ReadNamespace(member.id.pid, "mnt");
    if (!found || *found == expected) continue;  // a zombie has none
    return Fail(Code::kUnimplemented,
                fmt::format("process {} ({}) lives in a mount namespace of its own, as in a "
                            "container, and could not be restored",
                            member.id.pid.value, member.comm),
                "have the container's runtime checkpoint a container (`podman container "
                "checkpoint`, `docker checkpoint`); `stasis suspend` and `resume` work");
  }
  return {};
}

Status AskStdio(Asking& a) {
  STASIS_ASSIGN(a.answer.stdio, criu::PlanStdio(a.survey.tree, LogOf(a.services, a.survey.target)));
  return {};
}

struct Question {
  const char* id;
  Status (*ask)(Asking&);
};
constexpr Question kQuestions[] = {
    {"program-answers", AskReadable},
    {"privileges", AskPrivileges},
    {"resource-limits", AskLimits},
    {"criu", AskCriu},
    {"gpu-files", AskGpuFiles},
    {"other-job", AskOtherJobs},
    {"background", AskBackground},
    {"pid-namespace", AskPidNamespace},
    {"mount-namespace", AskMountNamespace},  // after the one before, whose answer it uses
    {"stdio", AskStdio},
};

// Whether an earlier image of the job is in the store.
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

Result<BeforeDump> AskBeforeDump(Services& services, const Survey& survey,
                                 const criu::Options& options, bool leave_running,
                                 std::vector<Refused>* refused) {
  BeforeDump answer;
  Asking asking{services, survey, leave_running, answer};
  for (const Question& question : kQuestions) {
    Status status = question.ask(asking);
    if (status) continue;
    if (refused == nullptr) return Fail(std::move(status).error());
    refused->push_back({question.id, std::move(status).error()});
  }
  if (refused == nullptr) {
    STASIS_TRY(criu::Preflight(survey.tree, options, answer.stdio));
    return answer;
  }
  STASIS_ASSIGN(auto obstacles, criu::FindObstacles(survey.tree, options, answer.stdio));
  for (const auto& found : obstacles) refused->push_back({found.name, criu::ToError(found)});
  return answer;
}

Status CheckImageSpace(const Services& services, const Survey& survey, const std::string& store,
                       bool full, uint64_t carried_bytes) {
  const std::string folder = ExistingPart(AbsolutePath(store));
  if (::access(folder.c_str(), W_OK) != 0) {
    return FailErrno(errno, "cannot write images to " + store);
  }
  uint64_t bytes = survey.device_bytes() + survey.device_bytes(/*suspended=*/true);
  if (!full && HasEarlierImage(services.paths, survey.target.job, store)) {
    bytes -= std::min(bytes, carried_bytes);
  }
  return store::CheckSpace(folder, bytes);
}

}  // namespace stasis::checks
