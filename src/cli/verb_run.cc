#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <optional>

#include "base/file.h"
#include "cli/attach.h"
#include "cli/attach_terminal.h"
#include "cli/operation.h"
#include "jobs/agent_library.h"
#include "jobs/shim_client.h"
#include "jobs/store.h"

namespace stasis::cli {
namespace {

constexpr auto kStartTimeout = std::chrono::seconds(30);

struct Options {
  std::string job;
  std::string log;
  bool attach = false;
  AttachOptions attach_options;
  bool tty = false, tty_said = false;  // tty_said: set explicitly
  bool no_agent = false;
};

// Size of a terminal without a client.
constexpr shim::WindowSize kUsualSize{24, 80};

// Returns true for a pipe or file, which the program can inherit directly; CRIU handles it at a
// dump.
bool CanBeInput(int fd) {
  struct stat st {};
  return ::fstat(fd, &st) == 0 && (S_ISFIFO(st.st_mode) || S_ISREG(st.st_mode));
}

bool WantsTerminal(const Options& options) {
  if (options.tty_said) return options.tty;
  return options.attach && ::isatty(STDIN_FILENO) != 0 && ::isatty(STDOUT_FILENO) != 0;
}

uint64_t SizeOf(const std::string& path) {
  struct stat st {};
  return ::stat(path.c_str(), &st) == 0 && S_ISREG(st.st_mode) ? static_cast<uint64_t>(st.st_size)
                                                               : 0;
}

Outcome Run(const Globals& globals, const Options& options) {
  if (globals.command.empty()) {
    return FailUsage("there is no program to run", "stasis run [OPTIONS] [--] CMD ARG...");
  }
  STASIS_TRY(DetachKeys::Parse(options.attach_options.detach_keys));
  STASIS_ASSIGN(Paths paths, OpenPaths(globals));
  jobs::Store store(paths.jobs());
  jobs::NewJob wanted;
  wanted.id = options.job;
  wanted.argv = globals.command;
  wanted.most_jobs = globals.settings().most_jobs;
  STASIS_ASSIGN(wanted.cwd, ReadLink("/proc/self/cwd"));
  if (!options.log.empty()) wanted.log = AbsolutePath(options.log);

  STASIS_ASSIGN(wanted.agent, jobs::AgentToPreload(paths, options.no_agent));
  const char* preloaded = std::getenv("LD_PRELOAD");
  std::map<std::string, std::string> env;
  // The agent reads no configuration. An empty value removes the variable.
  env["STASIS_FORK_KEEPS_GPU_FILES"] = globals.settings().keep_gpu_files ? "1" : "";
  env["LD_PRELOAD"] = jobs::PreloadValue(preloaded == nullptr ? "" : preloaded, wanted.agent);

  CaughtSignals signals;
  if (options.attach) {
    STASIS_ASSIGN(signals, CaughtSignals::Catch());
  }
  STASIS_ASSIGN(jobs::Claim claim, store.Create(wanted));
  const jobs::Job& job = claim.job();
  uint64_t log_offset = SizeOf(job.log);
  jobs::StdioSpec stdio{job.log};
  if (options.log.empty()) stdio.keep_log_bytes = globals.settings().log_bytes;
  std::optional<jobs::TerminalClient::Pair> terminal;
  if (WantsTerminal(options)) {
    stdio.terminal = OwnWindowSize();
    if (*stdio.terminal == shim::WindowSize()) stdio.terminal = kUsualSize;
    if (options.attach) {
      STASIS_ASSIGN(terminal, jobs::TerminalClient::MakePair(*stdio.terminal));
      stdio.client_fd = terminal->shim_side.get();
    }
  } else if (options.attach && CanBeInput(STDIN_FILENO)) {
    stdio.input_fd = STDIN_FILENO;
  }
  auto started =
      jobs::StartShimForRun({claim.folder(), stdio, job.argv, env}, Deadline::In(kStartTimeout));
  if (!started) {
    (void)claim.Discard();  // otherwise the next `run` sweeps it
    return Fail(std::move(started).error().WithContext("cannot run " + job.argv[0]));
  }
  if (options.attach) {
    if (!globals.quiet) {
      PrintStderr(fmt::format("stasis: job {}, process {}\n", job.id, started->root.pid.value));
    }
    std::string id = job.id;
    claim = {};
    if (!terminal) {
      return Attach(globals, store, id, log_offset, options.attach_options, std::move(signals));
    }
    terminal->shim_side.Reset();
    STASIS_ASSIGN(jobs::Job running, store.Load(id));
    return StayOnTerminal(globals, store, running, std::move(terminal->client),
                          options.attach_options, std::move(signals));
  }
  PrintResult(globals, job.id,
              {{"id", job.id}, {"pid", started->root.pid.value}, {"log", job.log}});
  return 0;
}

}  // namespace

void RegisterRun(App app, const std::function<void(Action)>& select) {
  auto options = std::make_shared<Options>();
  auto verb =
      app.add_subcommand("run", "Start a program as a job: stasis run [OPTIONS] [--] CMD ARG...");
  verb->alias("exec");
  verb->add_option("-j,--job,--jid", options->job, "Its name (default: one is made up)");
  verb->add_option("--log", options->log, "Append its output there (default: kept with the job)");
  verb->add_flag("-a,--attach", options->attach,
                 "Stay with it: show its output, pass signals on, end with its exit code (75: it "
                 "was dumped). On a terminal it gets one of its own. SIGHUP detaches");
  auto tty =
      verb->add_flag("-t,--tty,!--no-tty", options->tty,
                     "A terminal of its own, or none (default: with --attach on a terminal)");
  options->attach_options.AddTo(verb);
  AddGpuEnabled(verb);
  verb->add_flag(
      "--no-agent", options->no_agent,
      "Without Stasis's library in the program: suspend and dump then use the driver alone, "
      "which is slower");
  verb->footer(
      "The program begins at the first word that is neither an option nor an option's value, or "
      "behind `--`.");
  verb->callback([=] {
    options->tty_said = tty->count() != 0;
    select([=](const Globals& globals) { return Run(globals, *options); });
  });
}

}  // namespace stasis::cli
