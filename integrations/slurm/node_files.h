// The files of the tasks of a step on one node that are one target (--stasis=together), in
// STATE/slurm/. TASK is the name of a task, such as slurm-7.0.3, and NODE that of the common job,
// such as slurm-7.0.n1:
//
//   TASK.start               the description of the task's program (task_program.h)
//   TASK.out, TASK.err       the program's standard output and error
//   TASK.code                its exit code, 128+N after signal N; absent while it runs
//   NODE.tasks               the names of the tasks, by their local numbers
//   NODE.run                 how often the job was requeued, when the step was last started
//   NODE.synced              the same, once the root process knows of it
//   NODE.signals/LOCAL.N     signal N for the program of the task with this local number
//   NODE.socket              the socket of the leader while the step starts
//
// The launchers and the root process, which may be restored on another node, share them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace stasis::slurm {

// `task`: the path of the task's files without the ending.
inline std::string StartFile(const std::string& task) { return task + ".start"; }
inline std::string OutputFile(const std::string& task) { return task + ".out"; }
inline std::string ErrorsFile(const std::string& task) { return task + ".err"; }
inline std::string CodeFile(const std::string& task) { return task + ".code"; }

Status WriteCode(const std::string& task, int code);
// Returns nothing if the program has not ended, or the file is damaged.
std::optional<int> ReadCode(const std::string& task);
// Removes the files above. The task's StepFiles are not removed.
void RemoveTaskFiles(const std::string& task);

struct TaskSignal {
  int local = 0;   // local number of the task
  int signal = 0;  // 1 to 64
  bool operator==(const TaskSignal&) const = default;
};

// The files of the common job. Safe to call from any thread.
class NodeFiles {
 public:
  // `path`: of the files without the ending.
  explicit NodeFiles(std::string path) : path_(std::move(path)) {}
  const std::string& path() const { return path_; }

  // For the leader. Announces a start or restore, and forgets signals of an earlier one.
  Status BeginRun(int restarts);
  // Returns true if the root process has seen the last BeginRun. It then reads signals that are
  // announced by SIGUSR1; it reads earlier ones by itself.
  bool IsSynced() const;
  Status PutSignal(const TaskSignal& signal);
  // Removes those from the list that were put, and returns the first error.
  Status PutSignals(std::vector<TaskSignal>& signals);
  Status WriteTasks(const std::vector<std::string>& tasks);
  // Returns an empty list if the step was not started before.
  std::vector<std::string> ReadTasks() const;
  void Remove();

  // For the root process. Returns the text of BeginRun; empty if it is missing.
  std::string ReadRun() const;
  Status MarkSynced(const std::string& run);
  // Returns and removes the signals.
  std::vector<TaskSignal> TakeSignals();

 private:
  std::string path_;
};

}  // namespace stasis::slurm
