#include <fmt/format.h>

#include <memory>

#include "cli/attach.h"
#include "jobs/log_reader.h"
#include "jobs/manage.h"

namespace stasis::cli {
namespace {

// Bytes of the log to show first, so that the screen is not empty.
constexpr uint64_t kTailBytes = 16u << 10;

struct Options {
  std::string job;
  AttachOptions attach;
};

Outcome AttachToJob(const Globals& globals, const Options& options) {
  if (globals.json) return FailUsage("attach shows what the program writes, and has no JSON");
  STASIS_TRY(DetachKeys::Parse(options.attach.detach_keys));
  STASIS_ASSIGN(Paths paths, OpenPaths(globals));
  jobs::Store store(paths.jobs());
  STASIS_ASSIGN(jobs::Job job, store.Load(options.job));
  STASIS_TRY(jobs::CheckHasOutput(job, "attach to"));
  if (job.state != jobs::State::kRunning) {
    return Fail(
        Code::kFailedPrecondition,
        fmt::format("cannot attach to job {}: it is {}", job.id, jobs::StateName(job.state)),
        fmt::format("`stasis logs {}` shows what it wrote", job.id));
  }
  STASIS_ASSIGN(auto signals, CaughtSignals::Catch());
  return Attach(globals, store, job.id, jobs::LogReader::TailOffset(job.log, kTailBytes),
                options.attach, std::move(signals));
}

}  // namespace

void RegisterAttach(App app, const std::function<void(Action)>& select) {
  auto options = std::make_shared<Options>();
  auto verb = app.add_subcommand(
      "attach", "Go to the terminal of a running job, or follow its output where it has none");
  verb->add_option("JOB", options->job, "The job")->required();
  verb->add_flag("--watch", options->attach.watch, "Only look: no keys, no signals; Ctrl-C leaves");
  options->attach.AddTo(verb);
  verb->callback(
      [=] { select([=](const Globals& globals) { return AttachToJob(globals, *options); }); });
}

}  // namespace stasis::cli
