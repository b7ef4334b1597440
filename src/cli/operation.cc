#include "cli/operation.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>

#include "cli/account.h"
#include "jobs/store.h"

namespace stasis::cli {
namespace {

std::atomic<bool> cancel_asked{false};

// Ctrl-C asks; the plan answers between two phases, by undoing what it did. A second one changes
// nothing: an operation that was half undone is what nobody wants.
void AskToCancel(int) { cancel_asked = true; }

// One line on a terminal, overwritten as it goes; nothing where stderr is a file or a pipe.
coordinator::Progress TerminalProgress(const Globals& globals) {
  coordinator::Progress progress;
  if (globals.quiet || !::isatty(STDERR_FILENO)) return progress;
  progress.begin = [](const std::string& phase) {
    PrintStderr(fmt::format("\r\033[K{} ...", phase));
  };
  auto watch = std::make_shared<Stopwatch>();
  progress.bytes = [watch](const std::string& phase, uint64_t done, uint64_t total) {
    double rate = watch->Seconds() > 0 ? static_cast<double>(done) / watch->Seconds() : 0;
    std::string left = rate > 0 && total > done
                           ? FormatSeconds(static_cast<double>(total - done) / rate) + " left"
                           : "";
    PrintStderr(
        fmt::format("\r\033[K{} {} of {} {}", phase, FormatBytes(done), FormatBytes(total), left));
  };
  progress.end = [](const coordinator::PhaseReport&) { PrintStderr("\r\033[K"); };
  return progress;
}

}  // namespace

void CatchInterrupts() {
  struct sigaction action = {};
  action.sa_handler = AskToCancel;
  action.sa_flags = SA_RESTART;
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    struct sigaction before = {};
    ::sigaction(signal, nullptr, &before);
    // `nohup` and a shell's `&` have said already that it shall not matter.
    if (before.sa_handler != SIG_IGN) ::sigaction(signal, &action, nullptr);
  }
}

bool Interrupted() { return cancel_asked; }

void CommonOptions::AddTo(CLI::App& verb) {
  verb.add_option("--timeout", timeout_s,
                  "Seconds that any one phase may take (each has its own default)")
      ->check(CLI::Range(0.001, 86400.0));
  verb.add_flag("--dry-run", dry_run, "Look and plan, but touch nothing");
  verb.add_flag("--ignore-memory", ignore_memory,
                "Go on when host memory or the disk looks too small");
}

void CriuFlags::AddTo(CLI::App& verb) {
  verb.add_option("--tcp", tcp, "Established TCP connections: refuse, close or keep")
      ->check(CLI::IsMember({"refuse", "close", "keep"}));
  verb.add_flag("--file-locks", file_locks, "Save file locks and take them again");
  verb.add_flag("--link-remap", link_remap, "Save files that were deleted but have another name");
  verb.add_option("--external", external, "A resource outside of the program, in CRIU's syntax");
  verb.add_option("--criu-opt", criu_opts, "Another option of CRIU, K=V");
}

Result<criu::Options> CriuFlags::Parse() const {
  criu::Options options;
  STASIS_ASSIGN(options.tcp, criu::ParseTcp(tcp));
  options.file_locks = file_locks;
  options.link_remap = link_remap;
  options.external = external;
  for (const auto& option : criu_opts) STASIS_TRY(options.Set(option));
  return options;
}

Result<coordinator::Target> ParseTarget(const Paths& paths, const std::string& text) {
  STASIS_ASSIGN(auto resolved, jobs::Store(paths.jobs()).ResolveTarget(text));
  if (resolved.root.pid.value == 0) {
    return Fail(
        Code::kFailedPrecondition,
        fmt::format("job {} does not run ({})", text, jobs::StateName(resolved.job->state)),
        resolved.job->checkpoints.empty() ? "" : "`stasis restore " + text + "` brings it back");
  }
  coordinator::Target target;
  target.name = text;
  // A process in the middle of a job's tree is not the job: an image of it must not become the
  // job's.
  bool whole =
      resolved.job && resolved.job->processes && resolved.job->processes->root == resolved.root;
  if (whole) target.job = resolved.job->id;
  target.root = resolved.root;
  return target;
}

Outcome RunOperation(const Globals& globals, const CommonOptions& common, const std::string& verb,
                     const std::string& what, const OperationBody& operation) {
  CatchInterrupts();
  auto run = [&]() -> Result<coordinator::OperationResult> {
    STASIS_ASSIGN(Paths paths, OpenPaths());
    STASIS_ASSIGN(auto session, coordinator::OpenSession(paths, verb, STASIS_VERSION));
    coordinator::OperationOptions options;
    options.timeout = std::chrono::milliseconds(static_cast<int64_t>(common.timeout_s * 1000));
    options.dry_run = common.dry_run;
    options.ignore_memory = common.ignore_memory;
    options.progress = TerminalProgress(globals);
    options.cancelled = Interrupted;
    return operation(session, options);
  };
  auto result = Annotate(run(), "cannot " + what);
  if (!result) return Fail(std::move(result).error());
  PrintResult(globals, AccountText(*result), AccountJson(*result));
  return 0;
}

}  // namespace stasis::cli
