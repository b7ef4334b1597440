// The methods for jobs.
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "api/job_history.h"
#include "api/job_message.h"
#include "api/methods.h"
#include "api/share_survey.h"
#include "api/usage_error.h"
#include "api/utf8.h"
#include "base/deadline.h"
#include "jobs/manage.h"
#include "jobs/store.h"
#include "jobs/watch.h"
#include "operations/hold_job.h"
#include "plan/journal.h"
#include "process/tree.h"

namespace stasis::api {
namespace {

constexpr auto kKillTimeout = std::chrono::seconds(10);

struct Receiver {
  process::ProcessId id;
  UniqueFd pidfd;
};

// Lists the root first, so that it gets the signal before it can react to the end of its children.
std::vector<Receiver> Receivers(const jobs::Job& job, bool only_root) {
  std::vector<process::HostPid> pids;
  if (job.processes && process::IsAlive(job.processes->root)) {
    pids.push_back(job.processes->root.pid);
    auto tree = process::ReadTree(job.processes->root.pid);
    if (tree && !only_root) pids = tree->pids();
  }
  if (!only_root) {
    for (process::HostPid pid : jobs::BackgroundProcesses(job)) pids.push_back(pid);
  }
  std::vector<Receiver> receivers;
  for (process::HostPid pid : pids) {
    auto stat = process::ReadStat(pid);
    if (!stat || !process::IsAlive(stat->id)) continue;
    auto pidfd = process::OpenPidfd(stat->id);
    if (pidfd) receivers.push_back({stat->id, std::move(*pidfd)});
  }
  return receivers;
}

// A machine that has failed may have left an interrupted operation. The job may have ended before
// that operation, for example during a dump, so that only the operation is left.
Status NoteLost(const Paths& paths, const jobs::Store& store, const std::string& id) {
  Status noted = store.NoteLost(id);
  if (!noted && noted.error().code != Code::kFailedPrecondition) return noted;
  STASIS_ASSIGN(const jobs::Job job, store.Load(id));
  if (job.state == jobs::State::kElsewhere) return noted;
  STASIS_ASSIGN(const size_t taken, plan::TakeOverEntries(paths, id));
  return taken > 0 ? Status() : noted;
}

}  // namespace

Result<v1::ManageJobResponse> ManageJob(Call& call, const v1::ManageJobRequest& request) {
  jobs::ManageRequest wanted;
  wanted.id = request.job();
  wanted.most_jobs = call.settings.most_jobs;
  wanted.share = request.share();
  auto managed = [&]() -> Result<jobs::Job> {
    STASIS_ASSIGN(wanted.pid, jobs::ParsePid(request.target()));
    if (!wanted.share.empty()) STASIS_TRY(CheckCanShare(call, wanted.pid, wanted.share));
    // Refuses a process on which an operation is in progress. Such an operation does not know the
    // new job, and if it is a dump, it would end the job without an image in its record. An
    // operation looks for a job after it has written its journal entry (operations/execute.cc), and
    // this function looks for an entry after it has created the job, so at least one of the two
    // notices the other.
    wanted.confirm = [&](const process::ProcessId& root) {
      return plan::CheckNotUnderWay(call.paths, root);
    };
    return jobs::Manage(jobs::Store(call.paths.jobs()), wanted);
  }();
  if (!managed) {
    return Fail(std::move(managed).error().WithContext("cannot manage " +
                                                       Utf8(request.target().substr(0, 64))));
  }
  v1::ManageJobResponse response;
  response.set_job(managed->id);
  response.set_pid(managed->processes->root.pid.value);
  response.set_agent_library(Utf8(managed->agent));
  return response;
}

Result<v1::ListJobsResponse> ListJobs(Call& call, const v1::ListJobsRequest& request) {
  STASIS_ASSIGN(auto listed, jobs::Store(call.paths.jobs()).List());
  v1::ListJobsResponse response;
  std::vector<jobs::Job> shown;
  for (auto& entry : listed) {
    if (!entry.job) {
      auto* damaged = response.add_damaged();
      damaged->set_id(Utf8(entry.id));
      damaged->set_error(Utf8(entry.job.error().ToString()));
    } else if (request.all() || !jobs::HasEnded(entry.job->state)) {
      shown.push_back(std::move(*entry.job));
    }
  }
  GpuUsages gpus;
  if (!request.brief()) gpus = ReadGpuUsages(call.paths, call.settings, shown);
  response.set_problem(Utf8(gpus.problem));
  for (const jobs::Job& job : shown) *response.add_jobs() = ToMessage(job, gpus.by_name[job.id]);
  return response;
}

Result<v1::Job> GetJob(Call& call, const v1::GetJobRequest& request) {
  STASIS_ASSIGN(jobs::Job job, jobs::Store(call.paths.jobs()).Load(request.job()));
  GpuUsages gpus = ReadGpuUsages(call.paths, call.settings, {job});
  v1::Job message = ToMessage(job, gpus.by_name[job.id]);
  message.set_problem(Utf8(gpus.problem));
  return message;
}

Result<v1::Job> WaitJob(Call& call, const v1::WaitJobRequest& request) {
  STASIS_ASSIGN(jobs::Job job, jobs::AwaitEnd(jobs::Store(call.paths.jobs()), request.job(), {}));
  return ToMessage(job, {});
}

Result<v1::KillJobResponse> KillJob(Call& call, const v1::KillJobRequest& request) {
  const jobs::Store store(call.paths.jobs());
  if (request.lost()) {
    STASIS_TRY(NoteLost(call.paths, store, request.job()));
    return v1::KillJobResponse();
  }
  const int signal = request.signal();
  if (signal <= 0 || signal >= NSIG) {
    return FailUsage(fmt::format("'{}' is not a signal's number", signal));
  }
  uint32_t reached = 0;
  const Deadline deadline = Deadline::In(kKillTimeout);
  for (;;) {
    STASIS_ASSIGN(jobs::Job job, store.Load(request.job()));
    STASIS_TRY(jobs::CheckHere(job));
    std::vector<Receiver> receivers = Receivers(job, request.only_root());
    if (receivers.empty() && reached == 0) {
      return Fail(Code::kFailedPrecondition,
                  fmt::format("no process of job {} is running: the job is {}", job.id,
                              jobs::StateName(job.state)));
    }
    for (const Receiver& receiver : receivers) {
      if (::syscall(SYS_pidfd_send_signal, receiver.pidfd.get(), signal, nullptr, 0) == 0) {
        ++reached;
      } else if (errno != ESRCH) {
        return FailErrno(errno, "send a signal to process " + ToString(receiver.id.pid));
      }
    }
    // Look again for children that were started while the signals were sent.
    if (signal != SIGKILL || receivers.empty()) break;
    for (const Receiver& receiver : receivers) {
      pollfd end{receiver.pidfd.get(), POLLIN, 0};
      if (TEMP_FAILURE_RETRY(::poll(&end, 1, deadline.PollTimeout())) == 0) {
        return Fail(Code::kDeadlineExceeded,
                    "process " + ToString(receiver.id.pid) + " was killed but has not exited");
      }
    }
  }
  v1::KillJobResponse response;
  response.set_processes(reached);
  return response;
}

Result<v1::DeleteJobResponse> DeleteJob(Call& call, const v1::DeleteJobRequest& request) {
  const jobs::Store store(call.paths.jobs());
  Status deleted = store.Delete(request.job());
  // The store of jobs does not record whether a job is suspended.
  if (!deleted && deleted.error().code == Code::kFailedPrecondition) {
    auto job = store.Load(request.job());
    if (job && operations::IsSuspended(call.paths, *job)) {
      return Fail(
          Code::kFailedPrecondition, fmt::format("job {} is suspended", job->id),
          fmt::format("`stasis resume {0}` continues it; `stasis kill -s KILL {0}` ends it, "
                      "after which it can be deleted",
                      job->id));
    }
  }
  STASIS_TRY(std::move(deleted));
  return v1::DeleteJobResponse();
}

Result<v1::ListCheckpointsResponse> ListCheckpoints(Call& call,
                                                    const v1::ListCheckpointsRequest& request) {
  const jobs::Store store(call.paths.jobs());
  STASIS_ASSIGN(const auto checkpoints, store.Checkpoints(request.job()));
  v1::ListCheckpointsResponse response;
  if (const auto job = store.Load(request.job())) {
    response.set_moved_to(Utf8(jobs::MovedTo(*job)));
    response.set_perhaps_moved_to(Utf8(jobs::PerhapsMovedTo(*job)));
  }
  for (const jobs::Checkpoint& checkpoint : checkpoints) {
    v1::Checkpoint& message = *response.add_checkpoints();
    message = ToMessage(checkpoint);
    message.set_exists(ImageExists(checkpoint));
    message.set_account(Utf8(checkpoint.account));
  }
  return response;
}

}  // namespace stasis::api
