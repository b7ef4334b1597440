#include <memory>

#include "cli/operation.h"

namespace stasis::cli {
namespace {

struct ManageOptions {
  TargetWords words;
  std::string job;
};

Outcome Manage(const Globals& globals, const ManageOptions& options) {
  v1::ManageJobRequest request;
  STASIS_ASSIGN(*request.mutable_target(), options.words.Name());
  request.set_job(options.job);
  STASIS_ASSIGN(auto client, OpenClient(globals));
  STASIS_ASSIGN(const v1::ManageJobResponse response, client.ManageJob(request));
  PrintResult(globals, response.job(),
              {{"id", response.job()},
               {"pid", response.pid()},
               {"agent", !response.agent_library().empty()}});
  return 0;
}

}  // namespace

void RegisterManage(App app, const std::function<void(Action)>& select) {
  auto options = std::make_shared<ManageOptions>();
  auto verb = app.add_subcommand("manage",
                                 "Adopt a running program as a job: stasis manage PID --job NAME");
  options->words.AddTo(verb, "PID",
                       "The program's first process; all its descendants belong to the job too");
  verb->add_option("-j,--job,--jid", options->job, "Name of the job (default: a generated name)");
  verb->callback(
      [=] { select([=](const Globals& globals) { return Manage(globals, *options); }); });
}

}  // namespace stasis::cli
