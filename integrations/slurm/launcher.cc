#include "slurm/launcher.h"

#include <fmt/format.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "base/file.h"
#include "base/install_layout.h"
#include "base/rights.h"
#include "ipc/pidns_init.h"
#include "slurm/error_output.h"

extern char** environ;

namespace stasis::slurm {
namespace {

// Variables of the dynamic loader are for the task's program alone: no library of the user may be
// loaded into programs that have the launcher's rights. They are renamed by the plugin, and by this
// program where Slurm runs TaskProlog after the plugin (23.11), because that needs them and may set
// them.
constexpr std::string_view kRenamed = "STASIS_TASK_LD_";
constexpr std::string_view kRenamedPrefix = "STASIS_TASK_";

// Names the folder of StepFiles::WriteVariables for the program.
constexpr std::string_view kVariables = "STASIS_SLURM_ENV";

// A message must not stop the launcher: its output may lead to a stopped srun.
constexpr std::chrono::seconds kWriteLimit{1};

}  // namespace

void Print(std::string_view text) { WriteUntil(Deadline::In(kWriteLimit), STDERR_FILENO, text); }

void Note(const StepFiles& files, const std::string& text) {
  const std::string line = "stasis-step: " + text + "\n";
  if (auto log = files.OpenLog()) (void)WriteAll(log->get(), line);
  Print(line);
}

void Tell(const Error& error) {
  std::string text = "stasis-step: " + error.ToString() + "\n";
  if (!error.hint.empty()) text += error.hint + "\n";
  Print(text);
}

int CodeOfStatus(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

Result<TaskSignals> TaskSignals::Block() {
  sigset_t set;
  sigfillset(&set);
  for (int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT, SIGPIPE, SIGTTIN,
                     SIGTTOU, SIGXFSZ, SIGXCPU, SIGWINCH}) {
    sigdelset(&set, signal);
  }
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  UniqueFd fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) return FailErrno(errno, "signalfd");
  return TaskSignals(std::move(fd));
}

std::vector<int> TaskSignals::Read() const {
  std::vector<int> signals;
  signalfd_siginfo info;
  while (::read(fd_.get(), &info, sizeof info) == sizeof info) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal != SIGCHLD) signals.push_back(signal);
  }
  return signals;
}

Result<UniqueFd> StartTimer(int64_t every_s) {
  UniqueFd timer(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  const itimerspec times{{every_s, 0}, {every_s, 0}};  // 0: never expires
  if (!timer || ::timerfd_settime(timer.get(), 0, &times, nullptr) != 0) {
    return FailErrno(errno, "timerfd");
  }
  return timer;
}

void RestartWithoutLoaderVariables(char** argv) {
  std::vector<std::string> renamed;
  std::vector<char*> environment;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (std::string_view(*variable).starts_with("LD_")) {
      renamed.push_back(std::string(kRenamedPrefix) + *variable);
    } else {
      environment.push_back(*variable);
    }
  }
  if (renamed.empty()) return;
  for (std::string& variable : renamed) environment.push_back(variable.data());
  environment.push_back(nullptr);
  PassRightsOn({.trace = TracingIsRestricted(), .network = HasRight(Right::kNetwork)});
  // /proc/self/exe would name the process "exe".
  const auto path = LibexecProgram("stasis-step");
  if (path) ::execve(path->c_str(), argv, environment.data());
  Tell(path ? ErrnoError(errno, "cannot start again without the variables of the dynamic loader")
            : path.error());
}

std::vector<std::string> ProgramEnvironment() {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    if (!text.starts_with(kRenamed)) continue;
    variables.emplace_back(text.substr(kRenamedPrefix.size()));
    variables.push_back(std::string(text.substr(0, text.find('='))) + "=");
  }
  return variables;
}

Result<std::vector<std::string>> PrepareEnvironment(StepFiles& files, const TaskOptions& options) {
  std::vector<std::string> environment = ProgramEnvironment();
  STASIS_ASSIGN(const std::string variables, files.WriteVariables(environ));
  environment.push_back(std::string(kVariables) + "=" + variables);
  if (options.pidns_socket >= 0) {
    const std::string value = fmt::format("{}:{}", ipc::kPidnsSocketFd, options.pidns_init);
    ::setenv(ipc::kPidnsVariable, value.c_str(), 1);
    environment.push_back(std::string(ipc::kPidnsVariable) + "=");
  }
  return environment;
}

void EndPidns(const TaskOptions& options) {
  if (options.pidns_socket < 0) return;
  ::kill(options.pidns_init, SIGKILL);
  ::close(options.pidns_socket);
  (void)TEMP_FAILURE_RETRY(::waitpid(options.pidns_init, nullptr, 0));
}

}  // namespace stasis::slurm
