// stasis-step: the launcher that Slurm's plugin puts in front of a task's program. It is the task:
// Slurm sends signals to it, and its exit code is the task's. See task.h.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "base/file.h"
#include "base/install_layout.h"
#include "base/rights.h"
#include "base/subprocess.h"
#include "ipc/pidns_init.h"
#include "slurm/error_output.h"
#include "slurm/step_files.h"
#include "slurm/task.h"

extern char** environ;

namespace stasis::slurm {
namespace {

// The plugin renames variables of the dynamic loader, so that no library of the user is loaded into
// programs that have CRIU's right. They are for the task's program alone.
constexpr std::string_view kRenamed = "STASIS_TASK_LD_";
constexpr std::string_view kRenamedPrefix = "STASIS_TASK_";

// Names the folder of StepFiles::WriteVariables for the program.
constexpr std::string_view kVariables = "STASIS_SLURM_ENV";

// Slurm's description of the GPUs of a task; the task has none if all are empty.
constexpr const char* kGpuVariables[] = {"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
                                         "SLURM_STEP_GPUS", "SLURM_JOB_GPUS"};

// What the launcher says must not keep it from its work: its output may lead to a stopped srun.
constexpr std::chrono::seconds kWriteLimit{1};
constexpr std::chrono::seconds kLastWriteLimit{10};  // after the program's end

void Print(std::string_view text) { WriteUntil(Deadline::In(kWriteLimit), STDERR_FILENO, text); }

void Tell(const Error& error) {
  std::string text = "stasis-step: " + error.ToString() + "\n";
  if (!error.hint.empty()) text += error.hint + "\n";
  Print(text);
}

int CodeOf(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

bool HasGpus() {
  for (const char* name : kGpuVariables) {
    const char* value = ::getenv(name);
    if (value != nullptr && *value != '\0' && std::string_view(value) != "NoDevFiles") return true;
  }
  return false;
}

// Returns the renamed variables under their own names, and the new names as empty, which removes
// them from the program's environment.
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
  if (options.pidns_socket >= 0) {
    // The program must not find a child that it has not started.
    ::kill(options.pidns_init, SIGKILL);
    ::close(options.pidns_socket);
    (void)TEMP_FAILURE_RETRY(::waitpid(options.pidns_init, nullptr, 0));
  }
  DropRights();
  std::vector<char*> argv;
  for (const std::string& word : options.program) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  ::execvp(argv[0], argv.data());
  const int error = errno;
  Tell(ErrnoError(error, "cannot run " + options.program[0]));
  return error == ENOENT ? 127 : 126;
}

class RealCommands : public Commands {
 public:
  // `pidns_socket`: as in TaskOptions.
  RealCommands(std::string stasis, StepFiles files, int pidns_socket)
      : stasis_(std::move(stasis)), files_(std::move(files)), pidns_socket_(pidns_socket) {}

  void Note(const std::string& text) override {
    const std::string line = "stasis-step: " + text + "\n";
    if (auto log = files_.OpenLog()) (void)WriteAll(log->get(), line);
    Print(line);
  }
  int Run(const std::vector<std::string>& args) override {
    // Not through a pipe, because helpers that outlive the command may keep it open.
    auto log = files_.OpenLog();
    if (!log) return RunShown(args);
    const off_t before = ::lseek(log->get(), 0, SEEK_END);
    auto child = Start({"-q", "--no-daemon"}, args, {{2, log->get()}});
    if (!child) return 1;
    const int code = Await(*child);
    std::string text(static_cast<size_t>(::lseek(log->get(), 0, SEEK_END) - before), '\0');
    if (PreadAll(log->get(), text.data(), text.size(), static_cast<uint64_t>(before))) {
      Print(text);
    }
    return code;
  }

  std::string Ask(const std::vector<std::string>& args) override {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return "";
    UniqueFd read(ends[0]), write(ends[1]), null(::open("/dev/null", O_RDWR | O_CLOEXEC));
    auto child = Start({"--json", "--no-daemon"}, args, {{1, write.get()}, {2, null.get()}});
    write.Reset();
    if (!child) return "";
    std::string text;
    char buffer[4096];
    for (ssize_t got; (got = ::read(read.get(), buffer, sizeof buffer)) > 0;) {
      text.append(buffer, static_cast<size_t>(got));
    }
    return Await(*child) == 0 ? text : "";
  }

  Status StartAttached(const std::vector<std::string>& args) override {
    STASIS_ASSIGN(attached_, Start({"-q", "--no-daemon"}, args, {{0, 0}, {1, 1}, {2, 2}}));
    return {};
  }
  void KillAttached() override {
    attached_.Kill(SIGKILL);
    (void)attached_.Wait();
  }

  void StartBackground(const std::vector<std::string>& args) override {
    if (background_) return;
    auto child = Start({"-q", "--no-daemon"}, args, {});
    if (child) background_ = std::move(*child);
  }
  void CancelBackground() override {
    if (!background_) return;
    background_->Kill(SIGTERM);
    (void)background_->Wait();
    background_.reset();
  }

  void StartReserve(const std::vector<std::string>& args) override {
    if (reserve_) return;
    // Its mover stays with it; it ends with this process, even if that is killed.
    UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
    auto child = Start({"-q", "--no-daemon"}, args, {{2, null.get()}}, /*dies_with_parent=*/true);
    if (child) reserve_ = std::move(*child);
  }
  void StopReserve() override {
    if (!reserve_) return;
    reserve_->Kill(SIGKILL);
    (void)reserve_->Wait();
    reserve_.reset();
  }

  // Reaps what has ended. Returns the exit code of the attached command once.
  std::optional<int> Reap() {
    const Deadline now = Deadline::In(std::chrono::milliseconds(0));
    if (background_ && background_->Wait(now)) background_.reset();
    if (reserve_ && reserve_->Wait(now)) reserve_.reset();
    auto status = attached_.Wait(now);
    if (!status) return std::nullopt;
    return CodeOf(*status);
  }

 private:
  Result<Subprocess> Start(std::vector<std::string> words, const std::vector<std::string>& args,
                           std::map<int, int> fds, bool dies_with_parent = false) {
    SpawnOptions spawn;
    spawn.die_with_parent = dies_with_parent;
    words.insert(words.begin(), stasis_);
    words.insert(words.end(), args.begin(), args.end());
    spawn.argv = std::move(words);
    spawn.fds = std::move(fds);
    if (pidns_socket_ >= 0) spawn.fds[ipc::kPidnsSocketFd] = pidns_socket_;
    // `stasis` passes the right to CRIU alone.
    spawn.rights = SpawnOptions::Rights::kDump;
    auto child = Subprocess::Spawn(spawn);
    if (!child) Tell(child.error());
    return child;
  }

  // Runs a command whose messages are only printed.
  int RunShown(const std::vector<std::string>& args) {
    auto child = Start({"-q", "--no-daemon"}, args, {});
    return child ? Await(*child) : 1;
  }

  static int Await(Subprocess& child) {
    auto status = child.Wait();
    return status ? CodeOf(*status) : 1;
  }

  std::string stasis_;
  StepFiles files_;
  int pidns_socket_;
  Subprocess attached_;
  std::optional<Subprocess> background_;
  std::optional<Subprocess> reserve_;
};

// The signals that a task turns into commands. Faults of this program and stops by a terminal,
// except the one by which Slurm announces a suspend, have their usual effect.
sigset_t HandledSignals() {
  sigset_t set;
  sigfillset(&set);
  for (int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT, SIGPIPE, SIGTTIN,
                     SIGTTOU, SIGXFSZ, SIGXCPU, SIGWINCH}) {
    sigdelset(&set, signal);
  }
  return set;
}

Result<UniqueFd> StartTimer(int64_t every_s) {
  UniqueFd timer(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  const itimerspec times{{every_s, 0}, {every_s, 0}};  // 0: never expires
  if (!timer || ::timerfd_settime(timer.get(), 0, &times, nullptr) != 0) {
    return FailErrno(errno, "timerfd");
  }
  return timer;
}

Result<int> RunTask(TaskOptions options) {
  const sigset_t handled = HandledSignals();
  ::sigprocmask(SIG_BLOCK, &handled, nullptr);
  UniqueFd signals(::signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals) return FailErrno(errno, "signalfd");
  STASIS_ASSIGN(const UniqueFd timer, StartTimer(options.user.every_s));
  STASIS_ASSIGN(StepFiles files, StepFiles::Open(options.job, options.restarts, environ));
  if (options.script) {
    STASIS_ASSIGN(options.program[0], files.KeepScript(options.program[0]));
  }
  std::vector<std::string> environment = ProgramEnvironment();
  STASIS_ASSIGN(const std::string variables, files.WriteVariables(environ));
  environment.push_back(std::string(kVariables) + "=" + variables);
  STASIS_ASSIGN(const std::string root, InstallRoot());
  if (options.pidns_socket >= 0) {
    const std::string value = fmt::format("{}:{}", ipc::kPidnsSocketFd, options.pidns_init);
    ::setenv(ipc::kPidnsVariable, value.c_str(), 1);
    environment.push_back(std::string(ipc::kPidnsVariable) + "=");
  }
  RealCommands commands(root + "/bin/stasis", files, options.pidns_socket);
  // A program that was started with errors of its own has them after a requeue, too.
  std::optional<ErrorOutput> errors;
  if (AreApart(STDOUT_FILENO, STDERR_FILENO) || PathExists(files.errors_path())) {
    if (auto followed = ErrorOutput::Follow(files.errors_path())) {
      STASIS_ASSIGN(const std::string step, LibexecProgram("stasis-step"));
      options.program = WordsWithErrors(step, files.errors_path(), options.program);
      errors = std::move(*followed);
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
  bool copying = false;  // there is more than the standard error takes at once
  while (!task.exit_code()) {
    pollfd fds[] = {{signals.get(), POLLIN, 0},
                    {timer.get(), POLLIN, 0},
                    {errors && !copying ? errors->fd() : -1, POLLIN, 0},
                    {copying ? STDERR_FILENO : -1, POLLOUT, 0}};
    if (::poll(fds, 4, -1) < 0 && errno != EINTR) return FailErrno(errno, "poll");
    if (errors) copying = errors->Copy(STDERR_FILENO);
    uint64_t expired = 0;
    if (::read(timer.get(), &expired, sizeof expired) == sizeof expired) task.OnTimer();
    signalfd_siginfo info;
    while (::read(signals.get(), &info, sizeof info) == sizeof info) {
      const int signal = static_cast<int>(info.ssi_signo);
      if (signal != SIGCHLD) task.OnSignal(signal);
    }
    // The attached command's end is looked at last, because a signal may have caused it.
    if (task.exit_code()) break;
    if (auto code = commands.Reap()) task.OnAttachedEnd(*code);
  }
  if (errors) errors->CopyAll(STDERR_FILENO, Deadline::In(kLastWriteLimit));
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

int Main(const std::vector<std::string>& words) {
  HoldRights();
  // Another task's, if its program has started this one.
  ::unsetenv(ipc::kPidnsVariable);
  if (const int code = ExecWithErrors(words); code >= 0) return code;
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
  ::signal(SIGPIPE, SIG_IGN);  // Slurm may close the task's output before it ends
  // A helper that stays would delay the end of the step, and its memory is charged to the step.
  // With 0, a suspend would wait until its helper has ended, which takes a second at 40 GB.
  ::setenv("STASIS_HELPER_IDLE_S", "0.1", 1);
  auto code = RunTask(std::move(*options));
  if (!code) {
    Tell(code.error());
    return ExitCode(code.error());
  }
  return EndAs(*code);
}

}  // namespace
}  // namespace stasis::slurm

int main(int argc, char** argv) { return stasis::slurm::Main({argv + 1, argv + argc}); }
