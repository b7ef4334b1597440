#include <fmt/format.h>
#include <signal.h>

#include <charconv>
#include <memory>

#include "cli/operation.h"

namespace stasis::cli {
namespace {

struct KillOptions {
  std::string job;
  std::string signal = "TERM";
  bool only = false;
  bool lost = false;
};

struct SignalRow {
  std::string_view name;
  int number;
};
constexpr SignalRow kSignals[] = {
    {"HUP", SIGHUP},   {"INT", SIGINT},   {"QUIT", SIGQUIT}, {"ABRT", SIGABRT}, {"KILL", SIGKILL},
    {"USR1", SIGUSR1}, {"USR2", SIGUSR2}, {"PIPE", SIGPIPE}, {"ALRM", SIGALRM}, {"TERM", SIGTERM},
    {"CHLD", SIGCHLD}, {"CONT", SIGCONT}, {"STOP", SIGSTOP}, {"TSTP", SIGTSTP}, {"WINCH", SIGWINCH},
};

Result<int> ParseSignal(std::string_view text) {
  int number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size() && number > 0 && number < NSIG) {
    return number;
  }
  std::string_view name = text.starts_with("SIG") ? text.substr(3) : text;
  for (const SignalRow& row : kSignals) {
    if (row.name == name) return row.number;
  }
  return FailUsage(fmt::format("'{}' is not a signal", text), "use the signal's number");
}

Outcome Kill(const Globals& globals, const KillOptions& options) {
  STASIS_ASSIGN(int signal, ParseSignal(options.signal));
  v1::KillJobRequest request;
  request.set_job(options.job);
  request.set_signal(signal);
  request.set_only_root(options.only);
  request.set_lost(options.lost);
  STASIS_ASSIGN(auto client, OpenClient(globals));
  STASIS_ASSIGN(const v1::KillJobResponse response, client.KillJob(request));
  PrintResult(globals, "",
              {{"id", options.job},
               {"signal", options.lost ? 0 : signal},
               {"processes", response.processes()}});
  return 0;
}

}  // namespace

void RegisterKill(App app, const std::function<void(Action)>& select) {
  auto options = std::make_shared<KillOptions>();
  auto verb = app.add_subcommand("kill", "Send a signal to all processes of a job");
  verb->add_option("JOB", options->job, "The job")->required();
  auto signal = verb->add_option("-s,--signal", options->signal,
                                 "Name or number of the signal (default: TERM)");
  auto only =
      verb->add_flag("--only", options->only, "Send the signal to the job's first process only");
  auto lost = verb->add_flag("--lost", options->lost,
                             "Send nothing, but record that a job of another machine has ended: "
                             "use it if that machine has failed");
  lost->excludes(signal);
  lost->excludes(only);
  verb->callback([=] { select([=](const Globals& globals) { return Kill(globals, *options); }); });
}

}  // namespace stasis::cli
