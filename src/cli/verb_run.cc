#include <unistd.h>

#include <memory>

#include "api/methods.h"
#include "base/file.h"
#include "cli/operation.h"

namespace stasis::cli {
namespace {

struct RunOptions {
  std::string job;
  std::string log;
  bool attach = false;
  AttachFlags attach_flags;
  bool tty = false, has_tty = false;  // has_tty: --tty or --no-tty was given
  bool no_agent = false;
};

bool WantsTerminal(const RunOptions& options) {
  if (options.has_tty) return options.tty;
  return options.attach && ::isatty(STDIN_FILENO) != 0 && ::isatty(STDOUT_FILENO) != 0;
}

// Runs in this process even if there is a daemon, so that the job inherits the session's limits,
// control group, directory and environment.
Outcome Run(const Globals& globals, const RunOptions& options) {
  if (globals.command.empty()) {
    return FailUsage("there is no program to run", "stasis run [OPTIONS] [--] CMD ARG...");
  }
  v1::RunRequest request;
  request.set_job(options.job);
  for (const std::string& argument : globals.command) request.add_argv(argument);
  if (!options.log.empty()) request.set_log(AbsolutePath(options.log));
  request.set_no_agent(options.no_agent);
  if (WantsTerminal(options)) *request.mutable_terminal() = api::OwnWindowSize();
  STASIS_ASSIGN(api::Call call, OpenCall(globals));
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
  verb->footer(
      "The program's command line begins after `--`, or at the first word that is neither an "
      "option nor an option's value.");
  verb->callback([=] {
    options->has_tty = tty->count() != 0;
    select([=](const Globals& globals) { return Run(globals, *options); });
  });
}

}  // namespace stasis::cli
