// The program of a task, as its launcher describes it to the root process that starts it
// (--stasis=together).
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace stasis::slurm {

struct TaskProgram {
  std::vector<std::string> argv;
  std::vector<std::string> environment;  // NAME=VALUE
  std::string directory;
  mode_t umask = 022;
  std::vector<int> cpus;    // on which it may run
  bool one_output = false;  // its standard output and error are the same file, pipe or terminal
};

// Describes a program that is to run as this process would: its working directory, umask, CPUs,
// standard output and error. `changes`: NAME=VALUE, variables that differ from those of this
// process; one without a value is removed. Not safe to call while other threads create files.
Result<TaskProgram> DescribeProgram(std::vector<std::string> argv,
                                    const std::vector<std::string>& changes);

// A file of at most kStartBytes. ReadTaskProgram returns kDataLoss if it is damaged.
inline constexpr size_t kStartBytes = 16 << 20;
Status WriteTaskProgram(const std::string& path, const TaskProgram& program);
Result<TaskProgram> ReadTaskProgram(const std::string& path);
std::string FormatTaskProgram(const TaskProgram& program);
Result<TaskProgram> ParseTaskProgram(std::string_view text);

// Returns `environment` with the changes that lead from `before` to `after`.
std::vector<std::string> WithChanges(const std::vector<std::string>& environment,
                                     const std::vector<std::string>& before,
                                     const std::vector<std::string>& after);

// Returns an error if Slurm has bound the tasks to different GPUs: the programs are restored by one
// command, in the place of one of the tasks. `tasks`: their names, in the order of `programs`.
Status CheckGpus(const std::vector<std::string>& tasks, const std::vector<TaskProgram>& programs);

}  // namespace stasis::slurm
