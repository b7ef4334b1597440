// A task of a Slurm job under Stasis: what stasis-step does when Slurm sends signals to it.
//
//   event                  effect
//   start                  the program is restored if the task was dumped before, otherwise started
//   SIGTERM                suspend, dump, exit code 75. If the dump fails, the program gets SIGTERM
//   SIGTSTP, SIGCONT       suspend, resume
//   another signal         the program gets it
//   `every` has passed     dump --leave-running
//   the program has ended  its exit code. If it has ended by itself with code 0, its job and images
//                          are deleted
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "slurm/task_options.h"

namespace stasis::slurm {

// Exit code of a task that was dumped. With `RequeueExit=75` Slurm requeues its job.
inline constexpr int kDumpedExitCode = 75;

// The commands of Stasis that a task needs. `args` are the words after `stasis`.
class Commands {
 public:
  virtual ~Commands() = default;
  // Prints a line in the task's output.
  virtual void Note(const std::string& text) = 0;
  // Runs a command to its end, and returns its exit code. Shows its errors in the task's output.
  virtual int Run(const std::vector<std::string>& args) = 0;
  // Returns the result of a command as JSON text, or an empty text if it failed.
  virtual std::string Ask(const std::vector<std::string>& args) = 0;
  // Starts the command that stays attached to the program, with the task's standard input and
  // output. Task::OnAttachedEnd reports its end.
  virtual Status StartAttached(const std::vector<std::string>& args) = 0;
  // Kills the attached command, and waits until it has ended.
  virtual void KillAttached() = 0;
  // Starts a dump beside the running program. Does nothing if one is in progress.
  virtual void StartBackground(const std::vector<std::string>& args) = 0;
  // Cancels that dump, and waits until it has been undone.
  virtual void CancelBackground() = 0;
  // Starts the command that keeps host memory ready beside the program. It is not waited for.
  virtual void StartReserve(const std::vector<std::string>& args) = 0;
  // Kills that command. What it has made ready stays.
  virtual void StopReserve() = 0;
};

// Not safe to call from several threads.
class Task {
 public:
  Task(TaskOptions options, Commands& commands)
      : options_(std::move(options)), commands_(commands) {}

  // Starts or restores the program. Refuses to start it if its images could not be written to or
  // restored from the repository of the options. `environment`: NAME=VALUE, variables for the
  // program alone.
  Status Begin(const std::vector<std::string>& environment);
  void OnSignal(int signal);
  void OnTimer();
  // `code`: exit code of the attached command, 128+N after signal N.
  void OnAttachedEnd(int code);

  // Returns true if the program got SIGTERM after a dump that failed.
  bool dump_failed() const { return terminating_; }
  // The task's exit code, once it has ended.
  std::optional<int> exit_code() const { return exit_code_; }

 private:
  struct Job {
    std::string state = "absent";  // if there is no such job
    std::optional<int> code;
    bool HasProgram() const;
  };
  Job ReadJob();
  Job ReadEarlierJob();
  Status Start(const std::vector<std::string>& environment);
  Status CheckRepository();
  bool WantsReserve();
  void Reserve();
  void Terminate();
  bool Dump();
  void SignalProgram(int signal);
  void StopStart();
  void End(int code);
  int Finish();
  std::vector<std::string> WordsToRun() const;
  std::vector<std::string> WordsToContinue();
  std::vector<std::string> WordsToDump(bool leave_running) const;
  bool WasDumped();
  std::vector<std::string> Images();
  void DeleteImages();

  TaskOptions options_;
  Commands& commands_;
  bool reserves_ = false;  // host memory is kept ready while the program runs
  bool suspended_ = false;
  bool dumped_ = false;
  int dump_code_ = 0;         // exit code of the last dump
  bool terminating_ = false;  // SIGTERM was passed on
  bool began_ended_ = false;  // the job's program had ended before this task restored it
  std::optional<int> exit_code_;
};

}  // namespace stasis::slurm
