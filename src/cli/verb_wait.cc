#include <fmt/format.h>

#include <memory>

#include "cli/operation.h"

namespace stasis::cli {
namespace {

std::string Describe(const v1::Job& job) {
  if (job.state() == "dumped") return job.id() + " was dumped";
  if (job.signal() != 0) {
    return fmt::format("{} was ended by signal {}", job.id(), job.signal());
  }
  return fmt::format("{} exited with code {}", job.id(), job.code());
}

Outcome Wait(const Globals& globals, const std::string& id) {
  STASIS_ASSIGN(auto client, OpenClient(globals));
  STASIS_ASSIGN(const v1::Job job, client.WaitJob(id));
  STASIS_ASSIGN(const int code, api::ExitCodeOf(job));
  PrintResult(globals, Describe(job),
              {{"id", job.id()}, {"state", job.state()}, {"code", code}, {"signal", job.signal()}});
  return code;
}

}  // namespace

void RegisterWait(App app, const std::function<void(Action)>& select) {
  auto id = std::make_shared<std::string>();
  auto verb = app.add_subcommand("wait", "Wait until a job has ended, and exit with its exit code");
  verb->add_option("JOB", *id, "The job")->required();
  verb->callback([=] { select([=](const Globals& globals) { return Wait(globals, *id); }); });
}

}  // namespace stasis::cli
