#include "slurm/together_root.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "base/file.h"
#include "slurm/node_files.h"
#include "slurm/task_program.h"

extern char** environ;

namespace stasis::slurm {
namespace {

constexpr char kTogether[] = "--together";

// A signal or a restore wakes this process up. It also looks by itself now and then, because a
// signal may have been lost: sent to the shim before this process was restored, for example.
constexpr timespec kLook{10, 0};

// Bounds the walk through a tree that starts new processes meanwhile.
constexpr size_t kMostProcesses = 1 << 16;

using Strings = std::vector<std::string>;

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& string : strings) pointers.push_back(string.data());
  pointers.push_back(nullptr);
  return pointers;
}

void SetCpus(pid_t thread, const std::vector<int>& cpus) {
  if (cpus.empty()) return;
  const int size = *std::max_element(cpus.begin(), cpus.end()) + 1;
  const size_t bytes = CPU_ALLOC_SIZE(size);
  cpu_set_t* set = CPU_ALLOC(size);
  if (set == nullptr) return;
  CPU_ZERO_S(bytes, set);
  for (const int cpu : cpus) CPU_SET_S(static_cast<size_t>(cpu), bytes, set);
  (void)::sched_setaffinity(thread, bytes, set);  // fails if none of them is in the control group
  CPU_FREE(set);
}

std::vector<pid_t> Numbers(const std::vector<std::string>& names) {
  std::vector<pid_t> numbers;
  for (const std::string& name : names) {
    if (const int number = std::atoi(name.c_str()); number > 0) numbers.push_back(number);
  }
  return numbers;
}

std::vector<pid_t> ThreadsOf(pid_t process) {
  return Numbers(ListDir(fmt::format("/proc/{}/task", process)).value_or(Strings()));
}

std::vector<pid_t> ChildrenOf(pid_t process, pid_t thread) {
  const std::string text =
      ReadFile(fmt::format("/proc/{}/task/{}/children", process, thread)).value_or("");
  Strings names;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    names.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return Numbers(names);
}

// Lets all threads of a process and of its descendants run on these CPUs.
void SetCpusOfTree(pid_t root, const std::vector<int>& cpus) {
  std::vector<pid_t> processes = {root};
  for (size_t i = 0; i < processes.size() && i < kMostProcesses; ++i) {
    for (const pid_t thread : ThreadsOf(processes[i])) {
      SetCpus(thread, cpus);
      const std::vector<pid_t> children = ChildrenOf(processes[i], thread);
      processes.insert(processes.end(), children.begin(), children.end());
    }
  }
}

// Prints the reason on the program's standard error.
[[noreturn]] void FailChild(const std::string& what, int error) {
  (void)WriteAll(STDERR_FILENO, fmt::format("stasis-step: {}: {}\n", what, std::strerror(error)));
  ::_exit(error == ENOENT ? 127 : 126);
}

void OpenOutput(const std::string& path, int fd) {
  // For appending: the offset of a restored program would be that of the dump.
  const int file = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW, 0600);
  if (file < 0 || ::dup2(file, fd) < 0) FailChild("cannot open " + path, errno);
  if (file != fd) ::close(file);
}

// In a child: executes the program of a task.
[[noreturn]] void BecomeProgram(const std::string& task, TaskProgram program,
                                const sigset_t& signals) {
  ::setsid();  // a program may send signals to its process group
  ::close(STDIN_FILENO);
  if (::open("/dev/null", O_RDONLY) != STDIN_FILENO) FailChild("cannot open /dev/null", errno);
  OpenOutput(OutputFile(task), STDOUT_FILENO);
  if (program.one_output) {
    ::dup2(STDOUT_FILENO, STDERR_FILENO);
  } else {
    OpenOutput(ErrorsFile(task), STDERR_FILENO);
  }
  SetCpus(0, program.cpus);
  if (::chdir(program.directory.c_str()) != 0)
    FailChild("cannot enter " + program.directory, errno);
  ::umask(program.umask);
  ::sigprocmask(SIG_SETMASK, &signals, nullptr);
  std::vector<char*> argv = Pointers(program.argv), variables = Pointers(program.environment);
  environ = variables.data();
  ::execvp(argv[0], argv.data());
  FailChild("cannot run " + program.argv[0], errno);
}

class TogetherRoot {
 public:
  TogetherRoot(const std::string& node, const std::vector<std::string>& tasks) : node_(node) {
    for (const std::string& task : tasks) programs_.push_back({task, 0, std::nullopt, false});
  }

  int Run() {
    BlockSignals();
    if (Status started = StartAll(); !started) {
      (void)WriteAll(STDERR_FILENO, "stasis-step: " + started.error().ToString() + "\n");
      return 1;
    }
    Sync();
    while (IsAnyAlive()) {
      Deliver();
      Await();
    }
    return first_failure_;
  }

 private:
  struct Program {
    std::string task;
    pid_t pid = 0;  // 0 if it could not be started
    std::optional<int> code;
    bool is_written = false;  // the file of the code
  };

  void BlockSignals() {
    sigset_t blocked;
    sigfillset(&blocked);
    for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT}) {
      sigdelset(&blocked, signal);
    }
    ::sigprocmask(SIG_SETMASK, &blocked, &original_);
  }

  // Returns an error before any program has been started.
  Status StartAll() {
    std::vector<TaskProgram> described;
    for (const Program& program : programs_) {
      STASIS_ASSIGN(described.emplace_back(), ReadTaskProgram(StartFile(program.task)));
    }
    Strings own;
    for (char** variable = environ; *variable != nullptr; ++variable) own.emplace_back(*variable);
    // Before `stasis run` changed it.
    const Strings leaders = described[0].environment;
    for (size_t i = 0; i < programs_.size(); ++i) {
      described[i].environment = WithChanges(described[i].environment, leaders, own);
      Start(programs_[i], std::move(described[i]));
    }
    return {};
  }

  void Start(Program& program, TaskProgram described) {
    const pid_t pid = ::fork();
    if (pid == 0) BecomeProgram(program.task, std::move(described), original_);
    if (pid > 0) {
      program.pid = pid;
      return;
    }
    (void)WriteAll(STDERR_FILENO, fmt::format("stasis-step: fork: {}\n", std::strerror(errno)));
    End(program, 1);
  }

  void End(Program& program, int code) {
    program.code = code;
    if (first_failure_ == 0) first_failure_ = code;
    Write(program);
  }

  // If it fails, because the disk is full for example, Await() tries again.
  static void Write(Program& program) {
    program.is_written = WriteCode(program.task, *program.code).has_value();
  }

  bool IsAnyAlive() const {
    return std::any_of(programs_.begin(), programs_.end(),
                       [](const Program& program) { return !program.code; });
  }

  // Looks for a new start of the step.
  void Sync() {
    const std::string run = node_.ReadRun();
    if (run == run_ || run.empty()) return;
    const bool was_restored = !run_.empty();
    run_ = run;
    for (Program& program : programs_) {
      if (program.code) {
        Write(program);
      } else {
        (void)RemoveFile(CodeFile(program.task));
        if (!was_restored) continue;
        auto described = ReadTaskProgram(StartFile(program.task));
        if (described) SetCpusOfTree(program.pid, described->cpus);
      }
    }
    (void)node_.MarkSynced(run);
  }

  // A restore and a dump interrupt the wait.
  void Await() {
    sigset_t awaited;
    sigemptyset(&awaited);
    for (const int signal : {SIGCHLD, SIGUSR1, SIGTERM}) sigaddset(&awaited, signal);
    const int signal = ::sigtimedwait(&awaited, nullptr, &kLook);
    Sync();
    if (signal == SIGTERM) SendToAll(SIGTERM);
    for (Program& program : programs_) {
      if (program.code && !program.is_written) Write(program);
    }
    Reap();
  }

  void Reap() {
    int status = 0;
    for (pid_t pid; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
      for (Program& program : programs_) {
        if (program.pid != pid || program.code) continue;
        End(program, WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
      }
    }
  }

  void Deliver() {
    for (const TaskSignal& signal : node_.TakeSignals()) {
      const auto local = static_cast<size_t>(signal.local);
      if (local < programs_.size()) Send(programs_[local], signal.signal);
    }
  }

  void SendToAll(int signal) {
    for (const Program& program : programs_) Send(program, signal);
  }

  // A program that has ended but was not reaped still has its process id.
  static void Send(const Program& program, int signal) {
    if (!program.code && program.pid > 0) ::kill(program.pid, signal);
  }

  NodeFiles node_;
  std::vector<Program> programs_;  // by the tasks' local numbers
  sigset_t original_{};            // blocked at the start
  std::string run_;                // of NodeFiles; empty before the first Sync()
  int first_failure_ = 0;
};

}  // namespace

int RunTogether(const std::vector<std::string>& words) {
  if (words.size() < 3 || words[0] != kTogether) return -1;
  return TogetherRoot(words[1], {words.begin() + 2, words.end()}).Run();
}

}  // namespace stasis::slurm
