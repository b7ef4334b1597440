#include <memory>

#include "cli/operation.h"
#include "cli/share.h"

namespace stasis::cli {
namespace {

struct ManageOptions {
  TargetWords words;
  std::string job;
  ShareFlag share;
};

Outcome Manage(const Globals& globals, const ManageOptions& options) {
  v1::ManageJobRequest request;
  STASIS_ASSIGN(*request.mutable_target(), options.words.Name());
  request.set_job(options.job);
  STASIS_ASSIGN(*request.mutable_share(), options.share.Class());
  const bool shares = !request.share().empty();
  STASIS_ASSIGN(auto client, shares ? OpenShareClient(globals) : OpenClient(globals));
  if (shares) {
    STASIS_TRY(Annotate(client.NoteShare(/*starting=*/true), "cannot manage " + request.target()));
  }
  STASIS_ASSIGN(const v1::ManageJobResponse response, client.ManageJob(request));
  if (shares) STASIS_TRY(client.NoteShare(/*starting=*/false));
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
  options->share.AddTo(verb);
  verb->callback(
      [=] { select([=](const Globals& globals) { return Manage(globals, *options); }); });
}

}  // namespace stasis::cli
