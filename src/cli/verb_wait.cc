#include <fmt/format.h>

#include <memory>

#include "cli/attach.h"
#include "cli/operation.h"
#include "shim/shim_protocol.h"

namespace stasis::cli {
namespace {

const std::string kDumped(jobs::StateName(jobs::State::kDumped));

std::string Describe(const v1::Job& job) {
  if (job.state() == kDumped) return job.id() + " was dumped";
  if (job.signal() != 0) {
    return fmt::format("{} was ended by signal {}", job.id(), job.signal());
  }
  return fmt::format("{} exited with code {}", job.id(), job.code());
}

Outcome Wait(const Globals& globals, const std::string& id) {
  STASIS_ASSIGN(auto client, OpenClient(globals));
  STASIS_ASSIGN(const v1::Job job, client.WaitJob(id));
  if (job.state() != kDumped && !job.has_code())
    return FailUnknownEnd(id, job.has_root() && !job.has_shim_process());
  const int code = job.state() == kDumped ? shim::kDumpedExitCode : job.code();
  PrintResult(globals, Describe(job),
              {{"id", job.id()}, {"state", job.state()}, {"code", code}, {"signal", job.signal()}});
  return code;
}

}  // namespace

void RegisterWait(App app, const std::function<void(Action)>& select) {
  auto id = std::make_shared<std::string>();
  auto verb = app.add_subcommand("wait", "Wait for the end of a job; its exit code is ours");
  verb->add_option("JOB", *id, "The job")->required();
  verb->callback([=] { select([=](const Globals& globals) { return Wait(globals, *id); }); });
}

}  // namespace stasis::cli
