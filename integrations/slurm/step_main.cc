// stasis-step: the launcher that Slurm's plugin puts in front of a task's program. It is the task:
// Slurm sends signals to it, and its exit code is the task's. See task.h.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "base/file.h"
#include "base/install_layout.h"
#include "base/rights.h"
#include "ipc/pidns_init.h"
#include "slurm/error_output.h"
#include "slurm/launcher.h"
#include "slurm/stasis_commands.h"
#include "slurm/step_files.h"
#include "slurm/task.h"
#include "slurm/task_output.h"
#include "slurm/together_root.h"
#include "slurm/together_task.h"

extern char** environ;

namespace stasis::slurm {
namespace {

// Slurm's description of the GPUs of a task; the task has none if all are empty.
constexpr const char* kGpuVariables[] = {"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
                                         "SLURM_STEP_GPUS", "SLURM_JOB_GPUS"};

bool HasGpus() {
  for (const char* name : kGpuVariables) {
    const char* value = ::getenv(name);
    if (value != nullptr && *value != '\0' && std::string_view(value) != "NoDevFiles") return true;
  }
  return false;
}

// Runs a task's program without Stasis.
int RunAlone(const TaskOptions& options) {
  for (const std::string& variable : ProgramEnvironment()) {
    const size_t equals = variable.find('=');
    const std::string name = variable.substr(0, equals), value = variable.substr(equals + 1);
    if (value.empty()) {
      ::unsetenv(name.c_str());
    } else {
      ::setenv(name.c_str(), value.c_str(), 1);
    }
  }
  EndPidns(options);  // the program must not find a child that it has not started
  DropRights();
  std::vector<char*> argv;
  for (const std::string& word : options.program) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  ::execvp(argv[0], argv.data());
  const int error = errno;
  Tell(ErrnoError(error, "cannot run " + options.program[0]));
  return error == ENOENT ? 127 : 126;
}

Result<int> RunTask(TaskOptions options) {
  STASIS_ASSIGN(const TaskSignals signals, TaskSignals::Block());
  STASIS_ASSIGN(const UniqueFd timer, StartTimer(options.user.every_s));
  STASIS_ASSIGN(StepFiles files, StepFiles::Open(options.job, options.restarts, environ));
  if (options.script) {
    STASIS_ASSIGN(options.program[0], files.KeepScript(options.program[0]));
  }
  STASIS_ASSIGN(const std::vector<std::string> environment, PrepareEnvironment(files, options));
  STASIS_ASSIGN(const std::string root, InstallRoot());
  StasisCommands commands(root + "/bin/stasis", files, options);
  // A program that was started with errors of its own has them after a requeue, too.
  TaskOutput output;
  if (AreApart(STDOUT_FILENO, STDERR_FILENO) || PathExists(files.errors_path())) {
    if (Status followed = output.Follow(files.errors_path(), STDERR_FILENO)) {
      STASIS_ASSIGN(const std::string step, LibexecProgram("stasis-step"));
      options.program = WordsWithErrors(step, files.errors_path(), options.program);
    } else {
      // The user may have no inotify instance left.
      commands.Note("standard error is not kept apart: " + followed.error().ToString());
    }
  }
  // `run` lets the agent tell when the program's GPU memory grows.
  if (options.user.reserve) {
    ::setenv("STASIS_ARENA_RESERVE", *options.user.reserve ? "auto" : "off", 1);
  }
  const bool is_first = options.restarts == 0;
  Task task(std::move(options), commands);
  if (Status begun = task.Begin(environment); !begun) {
    if (is_first) files.Remove();
    return Fail(begun.error());
  }
  while (!task.exit_code()) {
    std::vector<pollfd> polls = {{signals.fd(), POLLIN, 0}, {timer.get(), POLLIN, 0}};
    output.AddTo(polls);
    if (::poll(polls.data(), polls.size(), -1) < 0 && errno != EINTR) {
      return FailErrno(errno, "poll");
    }
    output.Copy();
    uint64_t expired = 0;
    if (::read(timer.get(), &expired, sizeof expired) == sizeof expired) task.OnTimer();
    for (const int signal : signals.Read()) task.OnSignal(signal);
    // The attached command's end is looked at last, because a signal may have caused it.
    if (task.exit_code()) break;
    if (auto code = commands.Reap()) task.OnAttachedEnd(*code);
  }
  output.CopyAll(Deadline::In(kLastWriteLimit));
  // The log has the reason of a failed dump, which the job's output may lack.
  if (*task.exit_code() == 0) files.Remove(/*keep_log=*/task.dump_failed());
  return *task.exit_code();
}

// Ends this process as the program ended, so that Slurm reports the same.
int EndAs(int code) {
  if (code <= 128 || code >= 128 + NSIG) return code;
  const int signal = code - 128;
  const rlimit no_core{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
  ::signal(signal, SIG_DFL);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal);
  ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
  ::raise(signal);
  return code;
}

int Main(const std::vector<std::string>& words, char** argv) {
  HoldRights();
  // Another task's, if its program has started this one.
  ::unsetenv(ipc::kPidnsVariable);
  if (const int code = ExecWithErrors(words); code >= 0) return code;
  if (const int code = RunTogether(words); code >= 0) return code;
  RestartWithoutLoaderVariables(argv);
  auto options = ParseTaskOptions(words);
  if (!options) {
    Tell(options.error());
    return 2;
  }
  if (options->pidns_socket >= 0) ::fcntl(options->pidns_socket, F_SETFD, FD_CLOEXEC);
  if (!HasGpus()) return RunAlone(*options);
  if (Status nodes = CheckNodes(*options, environ); !nodes) {
    // A default of the partition must not make jobs fail that know nothing of it.
    if (options->by_default) Print("stasis-step: the task runs without Stasis:\n");
    Tell(nodes.error());
    return options->by_default ? RunAlone(*options) : ExitCode(nodes.error());
  }
  if (Status tcp = CheckTcp(*options, HasRight(Right::kNetwork)); !tcp) {
    Tell(tcp.error());
    return ExitCode(tcp.error());
  }
  ::signal(SIGPIPE, SIG_IGN);  // Slurm may close the task's output before it ends
  // A helper that stays would delay the end of the step, and its memory is charged to the step.
  // With 0, a suspend would wait until its helper has ended, which takes a second at 40 GB.
  ::setenv("STASIS_HELPER_IDLE_S", "0.1", 1);
  auto code =
      IsTogether(*options) ? RunTogetherTask(std::move(*options)) : RunTask(std::move(*options));
  if (!code) {
    Tell(code.error());
    return ExitCode(code.error());
  }
  return EndAs(*code);
}

}  // namespace
}  // namespace stasis::slurm

int main(int argc, char** argv) { return stasis::slurm::Main({argv + 1, argv + argc}, argv); }
