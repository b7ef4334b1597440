#include <sys/stat.h>
#include <unistd.h>

#include <memory>

#include "base/file.h"
#include "cli/attach.h"
#include "cli/operation.h"
#include "jobs/store.h"
#include "store/store_folder.h"

namespace stasis::cli {
namespace {

struct Options {
  std::string source;
  std::string job;
  std::string log;
  std::string pid_file;
  bool attach = false;
  std::string gpu_map;
  CommonOptions common;
  CriuFlags criu;
};

// An image's path or name, or a job: then its latest image.
Result<std::string> FindImage(const Paths& paths, const std::string& source) {
  if (jobs::IsValidId(source) && !PathExists(source + "/manifest.pb")) {
    auto job = jobs::Store(paths.jobs()).Load(source);
    if (job && !job->checkpoints.empty()) return job->checkpoints.back().image;
    if (!job && job.error().code != Code::kNotFound) return Fail(std::move(job).error());
  }
  STASIS_ASSIGN(std::string path, store::ResolveImage({paths.images()}, source));
  return AbsolutePath(path);
}

// Where the output of the restored program will begin in its log.
uint64_t LogSize(const jobs::Store& store, const std::string& job, std::string log) {
  if (auto record = store.Load(job); record && log.empty()) log = record->log;
  struct stat st;
  return ::stat(log.c_str(), &st) == 0 ? static_cast<uint64_t>(st.st_size) : 0;
}

// Restores, and stays with the job: its account goes to stderr, its output to stdout.
Outcome RunAttached(const Globals& globals, const Options& options, const OperationBody& body) {
  STASIS_ASSIGN(Paths paths, OpenPaths());
  jobs::Store store(paths.jobs());
  std::string job = options.job.empty() ? options.source : options.job;
  uint64_t offset = LogSize(store, job, options.log);
  STASIS_ASSIGN(auto signals, CaughtSignals::Catch());
  Globals quiet = globals;
  quiet.result_on_stderr = true;
  auto remember = [&](auto& session, const auto& run) {
    auto result = body(session, run);
    if (result) job = result->job;
    return result;
  };
  STASIS_TRY(RunOperation(quiet, options.common, "restore", "restore " + options.source, remember));
  if (options.common.dry_run) return 0;
  return Attach(globals, store, job, offset, std::move(signals));
}

Result<coordinator::OperationResult> Run(const Options& options, coordinator::Session& session,
                                         const coordinator::OperationOptions& run) {
  coordinator::RestoreOptions restore;
  STASIS_ASSIGN(restore.image, FindImage(session.services.paths, options.source));
  restore.job = options.job;
  if (!options.log.empty()) restore.log = AbsolutePath(options.log);
  restore.gpu_map = options.gpu_map;
  for (int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (restore.terminal_fd < 0 && ::isatty(fd)) restore.terminal_fd = fd;
  }
  STASIS_ASSIGN(restore.criu, options.criu.Parse());
  STASIS_ASSIGN(auto result, coordinator::Restore(session, restore, run));
  if (!options.pid_file.empty() && !run.dry_run) {
    if (Status written = WriteFileDurably(options.pid_file, std::to_string(result.pid) + "\n");
        !written) {
      result.notes.push_back("it runs, but --pid-file was not written: " +
                             written.error().ToString());
    }
  }
  return result;
}

}  // namespace

void RegisterRestore(CLI::App& app, const std::function<void(Action)>& select) {
  auto options = std::make_shared<Options>();
  auto* verb = app.add_subcommand("restore", "Bring a program back from an image");
  verb->add_option("TARGET|IMAGE", options->source,
                   "A job (its latest image), or an image's path or name")
      ->required();
  verb->add_option("--job", options->job, "Run it under this name (default: the one it had)");
  verb->add_option("--log", options->log, "Where its output goes (default: the job's log)");
  verb->add_option("--pid-file", options->pid_file, "Write its process id there");
  verb->add_flag("--attach", options->attach, "Stay with it: its output, its exit code");
  verb->add_option("--gpu-map", options->gpu_map,
                   "Onto other GPUs: OLD=NEW,... by UUID, index or name");
  options->common.AddTo(*verb);
  options->criu.AddTo(*verb);
  verb->callback([=] {
    select([=](const Globals& globals) -> Outcome {
      OperationBody body = [=](auto& session, const auto& run) {
        return Run(*options, session, run);
      };
      if (options->attach) return RunAttached(globals, *options, body);
      return RunOperation(globals, options->common, "restore", "restore " + options->source, body);
    });
  });
}

}  // namespace stasis::cli
