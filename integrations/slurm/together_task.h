// A task of a step whose tasks on one node are one target (--stasis=together): docs/slurm.md and
// docs/decisions/slurm-tasks-together.md.
//
// The launcher of the first task leads: it starts, dumps and restores the common job, as the
// launcher of a task alone does (task.h). The job's program is the root process (together_root.h),
// which starts the programs of all tasks. The other launchers are members: each describes its
// program, copies the program's output, passes signals on, and ends with the program's exit code,
// or with 75 after a dump.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "slurm/launcher.h"
#include "slurm/node_tasks.h"
#include "slurm/step_files.h"
#include "slurm/task_options.h"
#include "slurm/task_output.h"

namespace stasis::slurm {

// Returns the name of the common job: slurm-7.0.n1 for the task slurm-7.0.3 on node 1 of its step.
std::string NodeJobName(const std::string& task, int node);

// Returns an error if the step, which was requeued, has other tasks on this node than at the start
// of the common job. `before`: empty if that is unknown; `now`: not empty. Names of tasks by their
// local numbers.
Status CheckSameTasks(const std::string& job, const std::vector<std::string>& before,
                      const std::vector<std::string>& now);

// Returns the exit code of the leader. `job`: of the common job; `codes`: of the programs by their
// local numbers, absent for those that were dumped, killed or not started.
int LeaderCode(int job, const std::vector<std::optional<int>>& codes);

// State of both kinds of launchers. Not safe to call from several threads.
struct TogetherTask {
  // Writes the description of the task's program, and follows its output. From now on standard
  // input is /dev/null.
  static Result<TogetherTask> Prepare(const TaskOptions& options);

  // `reads_signals`: handles signals while the launchers wait for each other, as NodeWait::stops.
  NodeWait Waiting(std::function<bool()> reads_signals) const;
  void CopyAllOutput();

  TaskSignals signals;
  StepFiles files;
  std::vector<std::string> environment;  // the changes of the programs' environment
  TaskOutput output;
  NodeMeeting meeting;
  bool has_terminal = false;
};

// Runs the task to its end, and returns its exit code. `options`: of a task with IsTogether().
Result<int> RunTogetherTask(TaskOptions options);
Result<int> RunMember(const TaskOptions& options, TogetherTask& task);
Result<int> RunLeader(TaskOptions options, TogetherTask& task);

}  // namespace stasis::slurm
