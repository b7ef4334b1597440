#include <fmt/format.h>
#include <unistd.h>

#include <memory>
#include <optional>

#include "api/methods.h"
#include "base/file.h"
#include "cli/operation.h"
#include "cli/restart.h"
#include "cli/share.h"

namespace stasis::cli {
namespace {

struct RunOptions {
  std::string job;
  std::string log;
  bool attach = false;
  AttachFlags attach_flags;
  bool tty = false, has_tty = false;  // has_tty: --tty or --no-tty was given
  bool no_agent = false;
  std::vector<std::string> environment;
  bool or_restore = false;
  GpuFlags gpus;  // of a restore
  ShareFlag share;
};

bool WantsTerminal(const RunOptions& options) {
  if (options.has_tty) return options.tty;
  return options.attach && ::isatty(STDIN_FILENO) != 0 && ::isatty(STDOUT_FILENO) != 0;
}

// Refuses the program before it is started.
Status CheckAgent(const RunOptions& options) {
  if (!options.no_agent) return {};
  return FailUsage("a program without the agent cannot share GPUs",
                   "leave out --no-agent, or --share");
}

// Returns true if share.default applies. It is a preference: a program that cannot share, because
// it has no agent or the command uses no daemon, runs without.
bool SharesByDefault(const Globals& globals, const RunOptions& options) {
  return options.share.given.empty() && globals.settings().share_default != "off" &&
         !options.no_agent && !globals.no_daemon;
}

Status SetEnvironment(const RunOptions& options, v1::RunRequest& request) {
  for (const std::string& text : options.environment) {
    const size_t equals = text.find('=');
    if (equals == 0 || equals == text.npos) {
      return FailUsage(fmt::format("\"{}\" is not a variable", text), "--env NAME=VALUE");
    }
    (*request.mutable_environment())[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return {};
}

// Returns the images of --or-restore, newest first. Returns none if the program must be started; an
// earlier job of this name is then deleted.
Result<std::vector<std::string>> ImagesToRestore(const Globals& globals,
                                                 const RunOptions& options) {
  if (!options.or_restore) {
    if (!options.gpus.map.empty()) return FailUsage("--gpu-map needs --or-restore");
    if (!options.gpus.gpus.empty()) return FailUsage("--gpus needs --or-restore");
    return std::vector<std::string>();
  }
  if (options.job.empty()) return FailUsage("--or-restore needs --job NAME");
  STASIS_ASSIGN(api::Client client, OpenClient(globals));
  const auto job = client.GetJob(options.job);
  if (!job && job.error().code == Code::kNotFound) return std::vector<std::string>();
  if (!job) return Fail(job.error());
  STASIS_ASSIGN(const auto history, client.ListCheckpoints(options.job));
  STASIS_ASSIGN(Restart restart, PlanRestart(*job, history));
  if (restart.images.empty()) {
    STASIS_TRY(client.DeleteJob(options.job));
    if (!globals.quiet) PrintStderr(fmt::format("stasis: {}: it starts anew\n", restart.why));
  }
  return std::move(restart.images);
}

// Restores the newest of these images that can be restored.
Outcome RestoreInstead(const Globals& globals, const RunOptions& options,
                       const std::vector<std::string>& images) {
  v1::RestoreRequest request;
  request.set_job(options.job);
  if (!options.log.empty()) request.set_log(AbsolutePath(options.log));
  request.set_gpu_map(options.gpus.map);
  request.set_gpus(options.gpus.Granted());
  Globals printing = globals;
  printing.result_on_stderr = options.attach;
  auto restore = [&] {
    return RestoreNewest(
        images,
        [&](const std::string& image) {
          request.set_source(image);
          return RunRestore(printing, request);
        },
        PrintStderr);
  };
  if (!options.attach) {
    STASIS_TRY(restore());
    return 0;
  }
  STASIS_ASSIGN(const api::Call call, OpenCall(globals));
  return api::RestoreAttached(call, request, restore, options.attach_flags.ToMessage(),
                              NoteFor(globals));
}

// Runs in this process even if there is a daemon, so that the job inherits the session's limits,
// control group, directory and environment.
Outcome Run(const Globals& globals, const RunOptions& options) {
  if (globals.command.empty()) {
    return FailUsage("there is no program to run", "stasis run [OPTIONS] [--] CMD ARG...");
  }
  STASIS_ASSIGN(const std::vector<std::string> images, ImagesToRestore(globals, options));
  if (!images.empty()) return RestoreInstead(globals, options, images);
  v1::RunRequest request;
  request.set_job(options.job);
  for (const std::string& argument : globals.command) request.add_argv(argument);
  if (!options.log.empty()) request.set_log(AbsolutePath(options.log));
  request.set_no_agent(options.no_agent);
  STASIS_TRY(SetEnvironment(options, request));
  STASIS_ASSIGN(*request.mutable_share(), options.share.Class());
  const bool by_default = SharesByDefault(globals, options);
  if (by_default) request.set_share(globals.settings().share_default);
  if (WantsTerminal(options)) *request.mutable_terminal() = api::OwnWindowSize();
  STASIS_ASSIGN(api::Call call, OpenCall(globals));
  std::optional<api::Client> daemon;
  if (!request.share().empty()) {
    const std::string what = "cannot run " + request.argv(0);
    STASIS_TRY(Annotate(CheckAgent(options), what));
    auto client = OpenShareClient(globals);
    if (!client && by_default)
      client.error().hint += "; with --share=off the program does not need it";
    STASIS_ASSIGN(daemon, Annotate(std::move(client), what));
    STASIS_TRY(Annotate(daemon->NoteShare(/*starting=*/true), what));
    call.started = [&daemon](const std::string& job) {
      Status noted = daemon->NoteShare(/*starting=*/false);
      if (noted) return;
      PrintStderr(fmt::format("stasis: job {} runs, but does not share GPUs yet: {}\n", job,
                              noted.error().ToString()));
    };
  }
  if (!daemon && globals.settings().arena_reserve == "auto" && !globals.no_daemon) {
    // The program needs no daemon, so it runs without one too.
    if (auto client = api::Client::OpenDaemon(globals.settings())) daemon = std::move(*client);
    call.started = [&daemon](const std::string&) {
      if (daemon) (void)daemon->NoteShare(/*starting=*/false);
    };
  }
  if (options.attach) {
    return api::RunAttached(call, request, options.attach_flags.ToMessage(), NoteFor(globals));
  }
  STASIS_ASSIGN(const auto started, api::Run(call, request));
  PrintResult(globals, started.job(),
              {{"id", started.job()}, {"pid", started.pid()}, {"log", started.log()}});
  return 0;
}

}  // namespace

void RegisterRun(App app, const std::function<void(Action)>& select) {
  auto options = std::make_shared<RunOptions>();
  auto verb =
      app.add_subcommand("run", "Start a program as a job: stasis run [OPTIONS] [--] CMD ARG...");
  verb->alias("exec");
  verb->add_option("-j,--job,--jid", options->job, "Name of the job (default: a generated name)");
  verb->add_option("--log", options->log,
                   "File to which the program's output is appended (default: in the job's folder)");
  verb->add_flag(
      "-a,--attach", options->attach,
      "Stay attached: show the program's output, forward signals, and exit with its exit "
      "code (75 if it was dumped). On a terminal, the program gets its own terminal. "
      "SIGHUP detaches");
  auto tty = verb->add_flag("-t,--tty,!--no-tty", options->tty,
                            "Give the program its own terminal, or none (default: a terminal with "
                            "--attach on a terminal)");
  options->attach_flags.AddTo(verb);
  AddGpuEnabled(verb);
  verb->add_flag("--no-agent", options->no_agent,
                 "Start the program without the agent: suspend and dump then use the driver alone, "
                 "which is slower");
  verb->add_option("--env", options->environment,
                   "Set a variable of the program's environment; may be repeated")
      ->repeatable()
      ->option_text("NAME=VALUE");
  verb->add_flag("--or-restore", options->or_restore,
                 "If a job of this name was dumped and has not finished, restore its newest image "
                 "that can be restored, instead of starting the program");
  options->gpus.AddTo(verb, "With --or-restore: ");
  options->share.AddTo(verb);
  verb->footer(
      "The program's command line begins after `--`, or at the first word that is neither an "
      "option nor an option's value.");
  verb->callback([=] {
    options->has_tty = tty->count() != 0;
    select([=](const Globals& globals) { return Run(globals, *options); });
  });
}

}  // namespace stasis::cli
