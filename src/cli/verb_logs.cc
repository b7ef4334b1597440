#include <memory>

#include "cli/attach.h"
#include "jobs/log_reader.h"
#include "jobs/manage.h"

namespace stasis::cli {
namespace {

constexpr size_t kMostJsonBytes = 256u << 20;

struct Options {
  std::string job;
  bool follow = false;
};

Outcome Logs(const Globals& globals, const Options& options) {
  if (globals.json && options.follow) return FailUsage("--json and -f cannot go together");
  STASIS_ASSIGN(Paths paths, OpenPaths(globals));
  jobs::Store store(paths.jobs());
  STASIS_ASSIGN(jobs::Job job, store.Load(options.job));
  STASIS_TRY(jobs::CheckHasOutput(job, "show the log of"));
  if (globals.json) {
    jobs::LogReader log(job.log, 0);
    if (!log.regular()) return Fail(Code::kNotFound, "there is no log " + job.log);
    std::string text;
    do {
      STASIS_ASSIGN(std::string more, log.Next());
      if (more.empty()) break;
      text += more;
    } while (text.size() < kMostJsonBytes);
    PrintResult(globals, "", {{"id", job.id}, {"log", job.log}, {"text", text}});
    return 0;
  }
  STASIS_TRY(CopyLog(store, job, 0, options.follow));
  return 0;
}

}  // namespace

void RegisterLogs(App app, const std::function<void(Action)>& select) {
  auto options = std::make_shared<Options>();
  auto verb = app.add_subcommand("logs", "Show the output of a job");
  verb->add_option("JOB", options->job, "The job")->required();
  verb->add_flag("-f,--follow", options->follow, "Go on until the job has ended");
  verb->callback([=] { select([=](const Globals& globals) { return Logs(globals, *options); }); });
}

}  // namespace stasis::cli
