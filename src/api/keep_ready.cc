// Makes host memory ready for the next suspends of one job without a daemon: surveys the job when
// its GPU memory has grown, its records have changed or it has not answered, and then does the work
// of a daemon's worker (ready_arenas.cc).
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <limits>

#include "api/ready_arenas.h"
#include "api/share_survey.h"
#include "base/log.h"
#include "jobs/watch.h"

namespace stasis::api {
namespace {

// Between two looks at the free memory while some is ready: at a limit of a control group the
// kernel kills a process without a warning.
constexpr std::chrono::seconds kLook{5};
// Movers end so long after this command, if it is killed.
constexpr double kMoverIdleS = 60;
constexpr int kLooksPerMoverCall = 8;
// After a survey in which an operation was in progress, or an agent did not answer. Doubles with
// each such survey in a row.
constexpr std::chrono::seconds kFirstPause{2};
constexpr std::chrono::seconds kLongestPause{64};

class Keeper {
 public:
  Keeper(Call& call, const std::string& job, bool wait)
      : call_(call), job_(job), wait_(wait), store_(call.paths.jobs()) {}

  Status Run() {
    for (;;) {
      STASIS_ASSIGN(jobs::Watch watch, wait_ ? jobs::Watch::Await(store_, job_, {})
                                             : jobs::Watch::Start(store_, job_));
      Status ended = KeepWhileThere(watch);
      const bool deleted = !ended && ended.error().code == Code::kNotFound;
      if (!deleted || !wait_) return ended;
    }
  }

 private:
  // Returns kNotFound if the job is deleted.
  Status KeepWhileThere(jobs::Watch& watch) {
    growth_.Reset(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
    if (!growth_) return FailErrno(errno, "inotify_init");
    Forget();
    for (bool changed = true; !call_.cancelled || !call_.cancelled();) {
      STASIS_ASSIGN(const jobs::Job job, watch.Look());
      const bool runs = job.state == jobs::State::kRunning;
      STASIS_TRY(WatchGrowth());
      if (jobs::HasEnded(job.state) && !wait_) break;
      if (!wait_) STASIS_TRY(jobs::CheckHere(job));
      if (!runs) Forget();
      if (runs && changed) Renew();
      if (runs && !changed) Look();
      Status waited = watch.Wait(growth_.get(), NextLook());
      if (!waited && waited.error().code != Code::kDeadlineExceeded) return Fail(waited.error());
      changed = waited || renew_at_.passed();
      ReadEvents();
    }
    return {};
  }

  void Forget() {
    needs_.clear_needs();
    pause_ = {};
    renew_at_ = {};
  }

  Status WatchGrowth() {
    // `run` makes the file after the job and before its processes. It is missing if the job was
    // started without arena.reserve; then growth is seen only with other changes.
    const std::string file = ShareSignalFile(store_.Folder(job_));
    if (::inotify_add_watch(growth_.get(), file.c_str(), IN_ATTRIB) < 0 && errno != ENOENT) {
      return FailErrno(errno, "watch " + file);
    }
    return {};
  }

  void ReadEvents() {
    char events[4096];
    while (::read(growth_.get(), events, sizeof events) > 0) {
    }
  }

  Deadline NextLook() const {
    return needs_.needs().empty() ? renew_at_ : Deadline::Sooner(renew_at_, Deadline::In(kLook));
  }

  void Renew() {
    v1::SurveySharesRequest request;
    request.set_reserve(true);
    auto survey = SurveyJobs(call_, request, job_);
    bool complete = survey.has_value();
    if (!survey) {
      Note(survey.error());
      survey = v1::ShareSurvey();
    }
    v1::ReadyArenasRequest needs;
    for (const auto& program : survey->programs()) {
      if (program.busy()) complete = false;
      needs.mutable_needs()->MergeFrom(program.arenas());
    }
    if (!complete) AddMissing(needs);
    needs_ = std::move(needs);
    pause_ =
        complete ? std::chrono::seconds(0) : std::clamp(2 * pause_, kFirstPause, kLongestPause);
    renew_at_ = complete ? Deadline() : Deadline::In(pause_);
    if (!needs_.needs().empty()) Make();
  }

  // Adds the last needs of processes that the survey has not seen: what is ready for them still
  // counts against the job's limits.
  void AddMissing(v1::ReadyArenasRequest& needs) const {
    for (const auto& last : needs_.needs()) {
      const bool seen =
          std::any_of(needs.needs().begin(), needs.needs().end(), [&](const v1::ArenaNeed& need) {
            return need.gpu() == last.gpu() &&
                   need.process().SerializeAsString() == last.process().SerializeAsString();
          });
      if (!seen) *needs.add_needs() = last;
    }
  }

  void Make() {
    const uint64_t most = call_.settings.arena_reserve_bytes;
    needs_.set_most_bytes(most == 0 ? std::numeric_limits<uint64_t>::max() : most);
    auto made = MakeReady(call_, needs_, kMoverIdleS);
    if (!made) Note(made.error());
  }

  void Look() {
    if (needs_.needs().empty()) return;
    auto scarce = IsReadyMemoryScarce(call_, needs_);
    if (!scarce) return Note(scarce.error());
    if (*scarce) return Make();
    if (++looks_ % kLooksPerMoverCall != 0 || call_.settings.helper_idle_s <= 0) return;
    if (Status kept = KeepMovers(call_, needs_, kMoverIdleS); !kept) Note(kept.error());
  }

  static void Note(const Error& error) {
    log::Write(log::Level::kInfo, "not all host memory for suspends was made ready",
               log::ErrorFields(error));
  }

  Call& call_;
  const std::string job_;
  const bool wait_;
  const jobs::Store store_;
  UniqueFd growth_;
  v1::ReadyArenasRequest needs_;
  std::chrono::seconds pause_{0};  // before the next survey, if the last one was incomplete
  Deadline renew_at_;              // the end of that pause
  int looks_ = 0;
};

}  // namespace

Status KeepReady(Call& call, const std::string& job, bool wait) {
  return Keeper(call, job, wait).Run();
}

}  // namespace stasis::api
