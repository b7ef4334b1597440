#include <fmt/format.h>
#include <sys/stat.h>

#include <cstdlib>
#include <memory>

#include "base/file.h"
#include "cli/attach.h"
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
  bool no_agent = false;
};

uint64_t SizeOf(const std::string& path) {
  struct stat st {};
  return ::stat(path.c_str(), &st) == 0 && S_ISREG(st.st_mode) ? static_cast<uint64_t>(st.st_size)
                                                               : 0;
}

// The agent needs an x86-64 processor; elsewhere every program takes the driver's own path.
#if defined(__x86_64__)
constexpr bool kHasAgent = true;
#else
constexpr bool kHasAgent = false;
#endif

// Path of the library to preload, empty without. Never left out silently: the program would be
// slower to suspend for as long as it lives.
Result<std::string> AgentFor(const Paths& paths, const Options& options) {
  if (options.no_agent || !kHasAgent) return std::string();
  auto library = jobs::InstallAgentLibrary(paths);
  if (library) return library;
  Error error = std::move(library).error();
  error.code = Code::kUnimplemented;
  error.hint += (error.hint.empty() ? "" : "; or ") +
                std::string(
                    "start it with --no-agent: the driver alone then carries its GPU "
                    "memory, which is slower");
  return Fail(std::move(error).WithContext("cannot start the program under the agent"));
}

Outcome Run(const Globals& globals, const Options& options) {
  if (globals.command.empty()) {
    return FailUsage("there is no program to run", "stasis run [OPTIONS] -- CMD ARG...");
  }
  STASIS_ASSIGN(Paths paths, OpenPaths());
  jobs::Store store(paths.jobs());
  jobs::NewJob wanted;
  wanted.id = options.job;
  wanted.argv = globals.command;
  STASIS_ASSIGN(wanted.cwd, ReadLink("/proc/self/cwd"));
  if (!options.log.empty()) wanted.log = AbsolutePath(options.log);

  STASIS_ASSIGN(wanted.agent, AgentFor(paths, options));
  const char* preloaded = std::getenv("LD_PRELOAD");
  std::map<std::string, std::string> env;
  env["LD_PRELOAD"] = jobs::PreloadValue(preloaded == nullptr ? "" : preloaded, wanted.agent);

  CaughtSignals signals;
  if (options.attach) {
    STASIS_ASSIGN(signals, CaughtSignals::Catch());
  }
  STASIS_ASSIGN(jobs::Claim claim, store.Create(wanted));
  const jobs::Job& job = claim.job();
  uint64_t log_offset = SizeOf(job.log);
  auto started =
      jobs::StartShimForRun({claim.folder(), job.log, job.argv, env}, Deadline::In(kStartTimeout));
  if (!started) {
    STASIS_TRY(claim.Discard());
    return Fail(std::move(started).error().WithContext("cannot run " + job.argv[0]));
  }
  if (options.attach) {
    if (!globals.quiet) {
      PrintStderr(fmt::format("stasis: job {}, process {}\n", job.id, started->root.pid.value));
    }
    std::string id = job.id;
    claim = {};
    return Attach(globals, store, id, log_offset, std::move(signals));
  }
  PrintResult(globals, job.id,
              {{"id", job.id}, {"pid", started->root.pid.value}, {"log", job.log}});
  return 0;
}

}  // namespace

void RegisterRun(CLI::App& app, const std::function<void(Action)>& select) {
  auto options = std::make_shared<Options>();
  auto* verb = app.add_subcommand("run", "Start a program as a job: stasis run -- CMD ARG...");
  verb->alias("exec");
  verb->add_option("--job,--jid", options->job, "Its name (default: one is made up)");
  verb->add_option("--log", options->log, "Append its output there (default: kept with the job)");
  verb->add_flag("--attach", options->attach,
                 "Stay with it: show its output, pass signals on, end with its exit code (75: it "
                 "was dumped). SIGHUP detaches");
  verb->add_flag(
      "--no-agent", options->no_agent,
      "Without Stasis's library in the program: suspend and dump then use the driver alone, "
      "which is slower");
  verb->callback([=] { select([=](const Globals& globals) { return Run(globals, *options); }); });
}

}  // namespace stasis::cli
