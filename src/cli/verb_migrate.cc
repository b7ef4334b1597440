#include <fmt/format.h>
#include <unistd.h>

#include <memory>

#include "api/migrate.h"
#include "api/result_json.h"
#include "api/share_hold.h"
#include "base/file.h"
#include "cli/account.h"
#include "cli/interrupts.h"
#include "cli/transfer.h"

namespace stasis::cli {
namespace {

struct MigrateOptions {
  std::string target;
  std::string host;
  std::string via;
  uint32_t rounds = 4;
  std::string job;
  std::string gpu_map;
  bool new_pidns = false;
  bool assume_unshared = false;
  CommonOptions common;
  CriuFlags criu;
};

Result<v1::MigrateRequest> RequestOf(const MigrateOptions& options) {
  v1::MigrateRequest request;
  request.set_target(options.target);
  request.set_host(options.host);
  if (!options.via.empty()) request.mutable_via()->set_name(options.via);
  request.set_max_rounds(options.rounds);
  v1::DumpRequest& dump = *request.mutable_dump();
  *dump.mutable_options() = options.common.ToMessage();
  *dump.mutable_criu() = options.criu.ToMessage();
  dump.set_assume_unshared(options.assume_unshared);
  v1::RestoreRequest& restore = *request.mutable_restore();
  *restore.mutable_options() = options.common.ToMessage();
  *restore.mutable_criu() = options.criu.ToMessage();
  restore.set_job(options.job);
  restore.set_gpu_map(options.gpu_map);
  restore.set_new_pidns(options.new_pidns);
  return request;
}

Outcome RunMigrate(const Globals& globals, const MigrateOptions& options) {
  STASIS_ASSIGN(const v1::MigrateRequest request, RequestOf(options));
  STASIS_ASSIGN(RepositoryCall call, RepositoryCall::Open(globals));
  STASIS_ASSIGN(const auto hold,
                api::HoldShare(call.call(), request.target(), "Dump", InterruptFd()));
  const auto event = api::Migrate(call.call(), request);
  if (hold) hold->Finish(event.has_value());
  if (!event) return Fail(event.error());
  PrintResult(globals, AccountText(event->result()), api::ResultJson(event->result()));
  return 0;
}

Outcome RunReceive(const Globals& globals) {
  if (::isatty(STDIN_FILENO) || ::isatty(STDOUT_FILENO)) {
    return FailUsage("stasis receive is started by `stasis migrate` on another host",
                     "to move a job to this host, run `stasis migrate JOB HOST` on the other host");
  }
  STASIS_ASSIGN(RepositoryCall call, RepositoryCall::Open(globals));
  UniqueFd input(::dup(STDIN_FILENO)), output(::dup(STDOUT_FILENO));
  if (!input || !output) return FailErrno(errno, "dup");
  STASIS_TRY(api::ReceiveMigration(call.call(), std::move(input), std::move(output)));
  return 0;
}

}  // namespace

void RegisterMigrate(App app, const std::function<void(Action)>& select) {
  auto options = std::make_shared<MigrateOptions>();
  auto verb = app.add_subcommand("migrate", "Move a running job to another host");
  verb->add_option("JOB", options->target, "A job or a process id")->required();
  verb->add_option("HOST", options->host,
                   "The other host, as ssh names it; it needs Stasis and the program's files")
      ->required();
  verb->add_option("--via", options->via,
                   "Send images through this repository, which both hosts have added under this "
                   "name, instead of through ssh")
      ->option_text("REPO");
  verb->add_option(
          "--rounds", options->rounds,
          "Maximum number of copies that are made while the program runs (default: 4; 0: it "
          "is stopped for the whole copy)")
      ->range(0, 20);
  verb->add_option("--job", options->job, "Name of the job on the other host (default: as here)");
  verb->add_option("--gpu-map", options->gpu_map,
                   "Move to these GPUs: OLD=NEW,... by UUID, index or name (default: GPUs of the "
                   "same model in order)");
  verb->add_flag(
      "--new-pidns", options->new_pidns,
      "Restore into a new pid namespace, so that its process ids need not be free there");
  AddAssumeUnshared(verb, options->assume_unshared);
  options->common.AddTo(verb);
  options->criu.AddTo(verb);
  verb->callback(
      [=] { select([=](const Globals& globals) { return RunMigrate(globals, *options); }); });
}

void RegisterReceive(App app, const std::function<void(Action)>& select) {
  auto verb = app.add_subcommand("receive", "Serve `stasis migrate` of another host");
  verb->callback([=] { select(RunReceive); });
}

}  // namespace stasis::cli
