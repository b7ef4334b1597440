#include <fmt/format.h>

#include <memory>

#include "cli/attach.h"
#include "jobs/watch.h"

namespace stasis::cli {
namespace {

std::string Describe(const jobs::Job& job) {
  if (job.state == jobs::State::kDumped) return job.id + " was dumped";
  if (job.ending->signal != 0) {
    return fmt::format("{} was ended by signal {}", job.id, job.ending->signal);
  }
  return fmt::format("{} exited with code {}", job.id, job.ending->code);
}

Outcome Wait(const Globals& globals, const std::string& id) {
  STASIS_ASSIGN(Paths paths, OpenPaths());
  STASIS_ASSIGN(jobs::Job job, jobs::AwaitEnd(jobs::Store(paths.jobs()), id, {}));
  STASIS_ASSIGN(int code, ExitCodeOf(job));
  PrintResult(globals, Describe(job),
              {{"id", job.id},
               {"state", jobs::StateName(job.state)},
               {"code", code},
               {"signal", job.ending ? job.ending->signal : 0}});
  return code;
}

}  // namespace

void RegisterWait(CLI::App& app, const std::function<void(Action)>& select) {
  auto id = std::make_shared<std::string>();
  auto* verb = app.add_subcommand("wait", "Wait for the end of a job; its exit code is ours");
  verb->add_option("JOB", *id, "The job")->required();
  verb->callback([=] { select([=](const Globals& globals) { return Wait(globals, *id); }); });
}

}  // namespace stasis::cli
