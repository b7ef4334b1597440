#include <memory>

#include "base/file.h"
#include "cli/operation.h"

namespace stasis::cli {
namespace {

struct RestoreOptions {
  TargetWords words;
  std::string source;  // derived from `words`
  std::string job;
  std::string log;
  std::string pid_file;
  bool attach = false;
  AttachFlags attach_flags;
  GpuFlags gpus;
  bool new_pidns = false;
  bool share_files = false;
  bool trust_image = false;
  ArenaLimitFlag arena_limit;
  PlaceFlags places;
  CommonOptions common;
  CriuFlags criu;
};

Result<v1::RestoreRequest> RequestOf(const RestoreOptions& options) {
  v1::RestoreRequest request;
  STASIS_ASSIGN(const uint64_t arena_limit, options.arena_limit.Bytes());
  request.set_arena_limit_bytes(arena_limit);
  request.set_source(options.source);
  *request.mutable_places() = options.places.ToMessage();
  *request.mutable_options() = options.common.ToMessage();
  request.set_job(options.job);
  if (!options.log.empty()) request.set_log(AbsolutePath(options.log));
  if (!options.pid_file.empty()) request.set_pid_file(AbsolutePath(options.pid_file));
  request.set_gpu_map(options.gpus.map);
  request.set_gpus(options.gpus.Granted());
  request.set_new_pidns(options.new_pidns);
  request.set_share_files(options.share_files);
  request.set_trust_image(options.trust_image);
  *request.mutable_criu() = options.criu.ToMessage();
  return request;
}

// Restores and attaches: the summary goes to stderr, the job's output to stdout.
Outcome RunAttached(const Globals& globals, const RestoreOptions& options) {
  STASIS_ASSIGN(const v1::RestoreRequest request, RequestOf(options));
  Globals on_stderr = globals;
  on_stderr.result_on_stderr = true;
  auto restore = [&]() -> Result<std::string> {
    STASIS_ASSIGN(const std::string job, RunRestore(on_stderr, request));
    return options.common.dry_run ? "" : job;
  };
  STASIS_ASSIGN(const api::Call call, OpenCall(globals));
  return api::RestoreAttached(call, request, restore, options.attach_flags.ToMessage(),
                              NoteFor(globals));
}

}  // namespace

void RegisterRestore(App app, const std::function<void(Action)>& select) {
  auto options = std::make_shared<RestoreOptions>();
  auto verb = app.add_subcommand("restore", "Restore a program from an image");
  options->words.AddTo(
      verb, "TARGET|IMAGE",
      "A job (its latest image), the path or name of an image, REPO/IMAGE, or a container: "
      "podman:NAME, containerd:[NAMESPACE/]IMAGE, runc:ID");
  verb->add_option("--job", options->job,
                   "Name of the restored job or container (default: its previous name)");
  verb->add_option("--log", options->log,
                   "File to which the program's output is appended (default: the job's log)");
  verb->add_option("--pid-file", options->pid_file,
                   "File to which the program's process id is written");
  verb->add_flag(
      "-a,--attach", options->attach,
      "Stay attached: show the program's terminal or output, and exit with its exit code");
  options->attach_flags.AddTo(verb);
  options->gpus.AddTo(verb);
  verb->add_flag("--new-pidns", options->new_pidns,
                 "Restore into a new pid namespace, so that its process ids need not be free here");
  verb->add_flag("--share-files", options->share_files,
                 "With --new-pidns: let the program write to files that other programs, such as "
                 "other copies of it, have open for writing");
  verb->add_flag(
      "--trust-image", options->trust_image,
      "Accept an image from another installation, an image that other users could have changed, "
      "and, as root, an image of another user's program");
  options->arena_limit.AddTo(verb);
  options->places.AddTo(verb);
  options->common.AddTo(verb);
  options->criu.AddTo(verb);
  AddGpuEnabled(verb);
  verb->callback([=] {
    select([=](const Globals& globals) -> Outcome {
      STASIS_ASSIGN(options->source, options->words.Name());
      if (options->attach) return RunAttached(globals, *options);
      STASIS_ASSIGN(const v1::RestoreRequest request, RequestOf(*options));
      STASIS_TRY(RunRestore(globals, request));
      return 0;
    });
  });
}

}  // namespace stasis::cli
