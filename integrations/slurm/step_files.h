// The files of a task in Stasis's state folder, STATE/slurm/, which all nodes share:
//
//   JOB           a copy of the batch script
//   JOB.env/NAME  the SLURM* variables of the task's current step, one file for each
//   JOB.log       what stasis-step and its commands have reported; a step whose srun has ended
//                 cannot print it any more
//   JOB.err       the program's standard error, if it is apart from its output (error_output.h)
//
// With --stasis=together also those of node_files.h.
#pragma once

#include <string>

#include "base/file.h"

namespace stasis::slurm {

// Not safe to call from several threads.
class StepFiles {
 public:
  // Creates the folder. `environment`: of this process; STASIS_STATE_DIR or HOME names the folder.
  // Files of an earlier job of this name are removed if `restarts` is 0.
  static Result<StepFiles> Open(const std::string& job, int restarts, char* const* environment);

  // Copies a batch script to a place where it stays until the job has finished: Slurm deletes its
  // own copy when the job is requeued, and a shell has its script open. Returns the path.
  Result<std::string> KeepScript(const std::string& script);

  // Replaces the variables of the last step. Returns the folder. A program that was restored has
  // the environment of its first step, but may read these files.
  Result<std::string> WriteVariables(char* const* environment);

  // Opens the log for reading and appending.
  Result<UniqueFd> OpenLog() const;
  const std::string& log_path() const { return log_path_; }
  const std::string& errors_path() const { return errors_path_; }
  // The path of all files of the task, without the ending.
  const std::string& path() const { return script_; }
  const std::string& folder() const { return folder_; }

  void Remove(bool keep_log = false);

 private:
  std::string folder_, script_, variables_, log_path_, errors_path_;
  bool is_requeued_ = false;
};

}  // namespace stasis::slurm
