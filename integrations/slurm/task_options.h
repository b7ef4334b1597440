// The command line of stasis-step, and the options of `sbatch --stasis=...`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace stasis::slurm {

// As in "--stasis=every=30m,keep=3,to=fleet,reserve,tcp=keep".
struct UserOptions {
  int64_t every_s = 0;  // seconds between two dumps while the task runs; 0: none
  int keep = 2;         // images that stay on this machine
  std::string to;       // repository of the images; empty: this machine
  // Keep host memory ready for the next dump; absent: as arena.reserve of the configuration says.
  std::optional<bool> reserve;
  std::string tcp;         // "keep" or "close" the TCP connections of the program; empty: refuse
  bool multinode = false;  // processes on different nodes hold no connections to each other
  bool together = false;   // the tasks of a step on one node are one target
};

// Returns a usage error that names the wrong word.
Result<UserOptions> ParseUserOptions(const std::string& text);

// The place of a task in its step.
struct TaskPlace {
  int local = 0;  // its number on this node
  int count = 0;  // tasks of the step on this node; 0: unknown
  int node = 0;   // number of this node in the step
};

struct TaskOptions {
  std::string job;      // name of the task's job in Stasis
  int restarts = 0;     // how often Slurm has requeued the job
  bool script = false;  // the program is a batch script, which Slurm deletes
  UserOptions user;
  // The init process of the pid namespace that the plugin has made, and the socket to it
  // (ipc/pidns_init.h); 0 and -1: there is none.
  int pidns_init = 0, pidns_socket = -1;
  TaskPlace place;
  bool by_default = false;  // the job did not ask for --stasis; its partition has it as default
  std::vector<std::string> program;
};

// stasis-step --job NAME [--restarts N] [--script] [--default] [--options TEXT] [--pidns FD:PID]
//             [--member LOCAL/COUNT/NODE] -- CMD ARG...
Result<TaskOptions> ParseTaskOptions(const std::vector<std::string>& words);

// Returns true if the task and the others of the step on this node are one target
// (together_task.h); also if there are no others, because the step may have had some before it was
// requeued.
inline bool IsTogether(const TaskOptions& options) {
  return options.user.together && !options.script && options.place.count > 0;
}

// Returns an error if the task belongs to a step over several nodes, unless the option `multinode`
// is given. Each task is dumped alone, and CRIU cannot dump established connections to other nodes.
// Finding that out at the preemption would be too late. `environment`: of this process.
Status CheckNodes(const TaskOptions& options, char* const* environment);

// Returns an error if the task is to keep TCP connections without CAP_NET_ADMIN, which the plugin
// gives only with its argument tcp=keep. `has_network_right`: this process has the capability.
Status CheckTcp(const TaskOptions& options, bool has_network_right);

}  // namespace stasis::slurm
