// Functions for the launchers of all kinds of tasks: messages, signals, and the environment of the
// task's program.
#pragma once

#include <signal.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "slurm/step_files.h"
#include "slurm/task_options.h"

namespace stasis::slurm {

// Prints to the task's standard error, and gives up after a second: it may lead to a stopped srun.
void Print(std::string_view text);
// Prints a message of the launcher, and adds it to the task's log.
void Note(const StepFiles& files, const std::string& text);
void Tell(const Error& error);

// Returns the exit code of a shell for a status of waitpid(2).
int CodeOfStatus(int status);

// The signals of a task, which are blocked from now on. Faults of this program and stops by a
// terminal, except the one by which Slurm announces a suspend, have their usual effect.
class TaskSignals {
 public:
  static Result<TaskSignals> Block();
  int fd() const { return fd_.get(); }
  // Returns the signals that have come, without SIGCHLD.
  std::vector<int> Read() const;

 private:
  explicit TaskSignals(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

// Returns a timer that expires every so many seconds; with 0, never.
Result<UniqueFd> StartTimer(int64_t every_s);

// Renames the variables of the dynamic loader and starts this program again, without the libraries
// that they name. Returns if there are none, or if that fails.
void RestartWithoutLoaderVariables(char** argv);

// Returns the renamed variables under their own names, and the new names
// without a value, which removes them from the program's environment.
std::vector<std::string> ProgramEnvironment();

// Writes the variables of the current step, and returns the changes of the program's environment:
// ProgramEnvironment(), and STASIS_SLURM_ENV with the folder of the variables. Passes the init
// process of `options` on to commands of Stasis, and not to the program.
Result<std::vector<std::string>> PrepareEnvironment(StepFiles& files, const TaskOptions& options);

// Kills the init process of the pid namespace that the plugin has made for this task.
void EndPidns(const TaskOptions& options);

}  // namespace stasis::slurm
