#include "coordinator/before_dump.h"

#include <unistd.h>

#include <algorithm>

#include "base/file.h"
#include "coordinator/other_jobs.h"
#include "coordinator/program_pids.h"
#include "criu/preflight.h"
#include "criu/probe.h"
#include "image/image_folder.h"
#include "jobs/store.h"
#include "store/store_folder.h"

namespace stasis::coordinator {
namespace {

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

Status AskPrivileges(Asking&) { return criu::CheckPrivileges(); }

Status AskGpuFiles(Asking& a) { return CheckOnlyDeviceUsers(a.services, a.survey); }

Status AskOtherJobs(Asking& a) {
  STASIS_ASSIGN(const Operation dump, a.survey.ToOperation("dump"));
  return CheckEndsNoOtherJob(a.services.paths, dump.job, dump.members, a.leave_running);
}

Status AskBackground(Asking& a) { return CheckNothingOutside(a.survey); }

Status AskPidNamespace(Asking& a) {
  STASIS_ASSIGN(a.answer.in_own_pidns, LivesInJobsPidNamespace(a.services, a.survey));
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
    {"privileges", AskPrivileges}, {"criu", AskCriu},
    {"gpu-files", AskGpuFiles},    {"other-job", AskOtherJobs},
    {"background", AskBackground}, {"pid-namespace", AskPidNamespace},
    {"stdio", AskStdio},
};

// Whether an earlier image of the job is in the store.
bool HasEarlierImage(const Paths& paths, const std::string& job, const std::string& store) {
  if (job.empty()) return false;
  auto loaded = jobs::Store(paths.jobs()).Load(job);
  if (!loaded) return false;
  auto is_there = [&](const jobs::Checkpoint& checkpoint) {
    return checkpoint.image.substr(0, checkpoint.image.rfind('/')) == AbsolutePath(store) &&
           PathExists(checkpoint.image + "/" + image::kManifestName);
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

}  // namespace stasis::coordinator
