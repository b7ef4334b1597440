#include <sys/stat.h>
#include <unistd.h>

#include <memory>

#include "base/file.h"
#include "cli/attach.h"
#include "cli/operation.h"
#include "jobs/store.h"
#include "store/limits.h"

namespace stasis::cli {
namespace {

struct Options {
  TargetWords words;
  std::string source;  // derived from `words`
  std::string job;
  std::string log;
  std::string pid_file;
  bool attach = false;
  AttachOptions attach_options;
  std::string gpu_map;
  bool new_pidns = false;
  bool trust_image = false;
  CommonOptions common;
  CriuFlags criu;
};

// Returns the offset in the log at which the restored program's output will start.
uint64_t LogSize(const jobs::Store& store, const std::string& job, std::string log) {
  if (auto record = store.Load(job); record && log.empty()) log = record->log;
  struct stat st;
  return ::stat(log.c_str(), &st) == 0 ? static_cast<uint64_t>(st.st_size) : 0;
}

Outcome RunRestore(const Globals& globals, const Options& options, std::string& job) {
  v1::RestoreRequest request;
  // The id of a job or the name of an image takes precedence over a directory of that name here,
  // unless the directory is an image.
  const bool here = PathExists(options.source + "/" + store::kManifestName);
  request.set_source(here ? AbsolutePath(options.source) : options.source);
  *request.mutable_options() = options.common.ToMessage();
  request.set_job(options.job);
  if (!options.log.empty()) request.set_log(AbsolutePath(options.log));
  if (!options.pid_file.empty()) request.set_pid_file(AbsolutePath(options.pid_file));
  request.set_gpu_map(options.gpu_map);
  request.set_new_pidns(options.new_pidns);
  request.set_trust_image(options.trust_image);
  *request.mutable_criu() = options.criu.ToMessage();
  return RunOperation(
      globals,
      [&](api::Client& client, const api::OnEvent& on_event) {
        return client.Restore(request, on_event);
      },
      [&](const v1::OperationResult& result) { job = result.job(); });
}

// Restores and attaches: the summary goes to stderr, the job's output to stdout.
Outcome RunAttached(const Globals& globals, const Options& options) {
  STASIS_TRY(DetachKeys::Parse(options.attach_options.detach_keys));
  STASIS_ASSIGN(Paths paths, OpenPaths(globals));
  jobs::Store store(paths.jobs());
  std::string job = options.job.empty() ? options.source : options.job;
  uint64_t offset = LogSize(store, job, options.log);
  STASIS_ASSIGN(auto signals, CaughtSignals::Catch());
  Globals quiet = globals;
  quiet.result_on_stderr = true;
  STASIS_TRY(RunRestore(quiet, options, job));
  if (options.common.dry_run) return 0;
  return Attach(globals, store, job, offset, options.attach_options, std::move(signals));
}

}  // namespace

void RegisterRestore(App app, const std::function<void(Action)>& select) {
  auto options = std::make_shared<Options>();
  auto verb = app.add_subcommand("restore", "Bring a program back from an image");
  options->words.AddTo(verb, "TARGET|IMAGE",
                       "A job (its latest image), or an image's path or name");
  verb->add_option("--job", options->job, "Run it under this name (default: the one it had)");
  verb->add_option("--log", options->log, "Where its output goes (default: the job's log)");
  verb->add_option("--pid-file", options->pid_file, "Write its process id there");
  verb->add_flag("-a,--attach", options->attach,
                 "Stay with it: its terminal or output, its exit code");
  options->attach_options.AddTo(verb);
  verb->add_option("--gpu-map", options->gpu_map,
                   "Onto other GPUs: OLD=NEW,... by UUID, index or name");
  verb->add_flag("--new-pidns", options->new_pidns,
                 "Into a pid namespace of its own: its process ids may be taken here");
  verb->add_flag(
      "--trust-image", options->trust_image,
      "Also an image from elsewhere, or that others could have changed, or (for root) of a "
      "user's program");
  options->common.AddTo(verb);
  options->criu.AddTo(verb);
  AddGpuEnabled(verb);
  verb->callback([=] {
    select([=](const Globals& globals) -> Outcome {
      STASIS_ASSIGN(options->source, options->words.Name());
      if (options->attach) return RunAttached(globals, *options);
      std::string job;
      return RunRestore(globals, *options, job);
    });
  });
}

}  // namespace stasis::cli
