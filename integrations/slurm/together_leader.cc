// The launcher of the leader.
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/install_layout.h"
#include "slurm/node_files.h"
#include "slurm/stasis_commands.h"
#include "slurm/task.h"
#include "slurm/task_program.h"
#include "slurm/together_task.h"

extern char** environ;

namespace stasis::slurm {
namespace {

// A signal that could not be delivered, because the disk was full for example, is tried again after
// this time.
constexpr int kRetryMs = 1000;

class LeaderTask {
 public:
  LeaderTask(TaskOptions options, TogetherTask& task, StasisCommands& commands)
      : options_(std::move(options)),
        together_(task),
        commands_(commands),
        node_(task.meeting.folder + "/" + task.meeting.name) {}

  Result<int> Run() {
    STASIS_ASSIGN(NodeLeader members, NodeLeader::Listen(together_.meeting, options_.job));
    members_ = &members;
    auto code = RunJob();
    SendEnds(code.value_or(code ? 0 : ExitCode(code.error())));
    if (!has_begun_ && options_.restarts == 0) RemoveFiles();
    if (!code || !has_begun_) return code;
    together_.CopyAllOutput();
    const int own = OwnCode(*code);
    // The logs have the reason of a failed dump, which the job's output may lack.
    if (*code == 0) RemoveFiles(/*keep_logs=*/job_->dump_failed());
    return own;
  }

 private:
  // Returns the exit code of the common job.
  Result<int> RunJob() {
    auto stops = [this] {
      ReadSignals();
      return is_ended_;
    };
    Status gathered = members_->Gather(together_.Waiting(stops));
    if (!gathered && is_ended_) return kDumpedExitCode;  // as a task that has not begun
    STASIS_TRY(gathered);
    STASIS_TRY(CheckTasks());
    STASIS_TRY(Begin());
    while (!job_->exit_code()) {
      STASIS_TRY(Await());
      together_.output.Copy();
      ReadTimer();
      ReadSignals();
      (void)DeliverSignals();  // was reported by Deliver()
      for (const TaskSignal& signal : members_->Read()) Handle(signal);
      // The attached command's end is looked at last, because a signal may have caused it.
      if (job_->exit_code()) break;
      if (auto code = commands_.Reap()) job_->OnAttachedEnd(*code);
    }
    return *job_->exit_code();
  }

  std::string PathOf(const std::string& task) const {
    return together_.meeting.folder + "/" + task;
  }

  // Refuses what could not be dumped or restored later.
  Status CheckTasks() {
    if (together_.has_terminal) {
      return Fail(Code::kUnimplemented,
                  "the step has a terminal (srun --pty), but with --stasis=together the tasks have "
                  "no standard input",
                  "omit --pty, or `together`");
    }
    const std::vector<std::string>& tasks = members_->tasks();
    std::vector<TaskProgram> programs;
    for (const std::string& task : tasks) {
      STASIS_ASSIGN(programs.emplace_back(), ReadTaskProgram(StartFile(PathOf(task))));
    }
    STASIS_TRY(CheckGpus(tasks, programs));
    if (options_.restarts > 0) {
      STASIS_TRY(CheckSameTasks(together_.meeting.name, node_.ReadTasks(), tasks));
    }
    return node_.WriteTasks(tasks);
  }

  Status Begin() {
    STASIS_ASSIGN(const std::string step, LibexecProgram("stasis-step"));
    // The codes may be of a later time than the image. The root process writes them again.
    for (const std::string& task : members_->tasks()) {
      STASIS_TRY(RemoveFile(CodeFile(PathOf(task))));
    }
    STASIS_TRY(node_.BeginRun(options_.restarts));
    TaskOptions common = options_;
    common.job = together_.meeting.name;
    common.program = {step, "--together", node_.path()};
    for (const std::string& task : members_->tasks()) common.program.push_back(PathOf(task));
    STASIS_ASSIGN(timer_, StartTimer(options_.user.every_s));
    job_.emplace(std::move(common), commands_);
    STASIS_TRY(job_->Begin(together_.environment));
    has_begun_ = true;
    members_->SendBegun();
    const std::vector<int> early = std::move(early_signals_);
    for (const int signal : early) OnSignal(signal);
    return {};
  }

  Status Await() {
    std::vector<pollfd> polls = {{together_.signals.fd(), POLLIN, 0}, {timer_.get(), POLLIN, 0}};
    together_.output.AddTo(polls);
    members_->AddTo(polls);
    const int timeout_ms = undelivered_.empty() ? -1 : kRetryMs;
    if (::poll(polls.data(), polls.size(), timeout_ms) < 0 && errno != EINTR) {
      return FailErrno(errno, "poll");
    }
    return {};
  }

  void ReadTimer() {
    uint64_t expired = 0;
    if (::read(timer_.get(), &expired, sizeof expired) == sizeof expired) job_->OnTimer();
  }

  void ReadSignals() {
    for (const int signal : together_.signals.Read()) {
      if (job_) {
        OnSignal(signal);
      } else {
        is_ended_ |= signal == SIGTERM;
        early_signals_.push_back(signal);
      }
    }
  }

  void OnSignal(int signal) {
    if (signal == SIGTERM || signal == SIGTSTP || signal == SIGCONT) {
      job_->OnSignal(signal);
    } else {
      Deliver({0, signal});
    }
  }

  // Handles a request of a member, or its end.
  void Handle(const TaskSignal& request) {
    if (request.signal != 0) return Deliver(request);
    const std::string& task = members_->tasks()[static_cast<size_t>(request.local)];
    if (ReadCode(PathOf(task)) || job_->exit_code()) return;
    // For Slurm the task has ended.
    commands_.Note("the launcher of " + task + " has ended, so its program is killed");
    Deliver({request.local, SIGKILL});
  }

  void Deliver(const TaskSignal& signal) {
    if (std::find(undelivered_.begin(), undelivered_.end(), signal) == undelivered_.end()) {
      undelivered_.push_back(signal);
    }
    if (Status put = DeliverSignals(); !put) {
      commands_.Note("a signal is delivered later: " + put.error().ToString());
    }
  }

  Status DeliverSignals() {
    if (undelivered_.empty()) return {};
    STASIS_TRY(node_.PutSignals(undelivered_));
    // Earlier, the signal could end the root process.
    if (node_.IsSynced()) {
      commands_.Run(
          {"kill", "--only", "--signal", std::to_string(SIGUSR1), together_.meeting.name});
    }
    return {};
  }

  void SendEnds(int code) {
    for (size_t i = 1; i < members_->tasks().size(); ++i) {
      const std::string& task = members_->tasks()[i];
      members_->SendEnd(static_cast<int>(i), CodeOfTask(task).value_or(code));
    }
    members_->SendEndToUnknown(code);
  }

  // Codes of an earlier start count only if the programs were started or restored.
  std::optional<int> CodeOfTask(const std::string& task) const {
    return has_begun_ && !task.empty() ? ReadCode(PathOf(task)) : std::nullopt;
  }

  int OwnCode(int code) const {
    std::vector<std::optional<int>> codes;
    for (const std::string& task : members_->tasks()) codes.push_back(CodeOfTask(task));
    return LeaderCode(code, codes);
  }

  void RemoveFiles(bool keep_logs = false) {
    for (const std::string& task : members_->tasks()) {
      if (task.empty()) continue;
      // 1: does not remove them yet.
      auto files = StepFiles::Open(task, 1, environ);
      if (files) files->Remove(keep_logs);
    }
    node_.Remove();
  }

  TaskOptions options_;  // of the leader's own task
  TogetherTask& together_;
  StasisCommands& commands_;
  NodeFiles node_;
  NodeLeader* members_ = nullptr;
  std::optional<Task> job_;
  UniqueFd timer_;
  std::vector<int> early_signals_;
  std::vector<TaskSignal> undelivered_;  // whose files could not be written
  bool is_ended_ = false;                // by SIGTERM before the start
  bool has_begun_ = false;
};

}  // namespace

Result<int> RunLeader(TaskOptions options, TogetherTask& task) {
  STASIS_ASSIGN(const std::string root, InstallRoot());
  StasisCommands commands(root + "/bin/stasis", task.files, options);
  if (options.user.reserve) {
    ::setenv("STASIS_ARENA_RESERVE", *options.user.reserve ? "auto" : "off", 1);
  }
  return LeaderTask(std::move(options), task, commands).Run();
}

}  // namespace stasis::slurm
