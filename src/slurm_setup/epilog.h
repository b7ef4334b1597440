// Frees what a Slurm job that was killed has left on its node. Slurm calls the Epilog on each node
// of a job that has ended, as root.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"

namespace stasis::slurm_setup {

struct EndedJob {
  std::string id;
  uid_t uid = 0;
  // Variables of the job that name folders of Stasis, as NAME=VALUE. Slurm's plugin passes them to
  // the Epilog under names with SPANK_ in front.
  std::vector<std::string> folders;
};
// `environment`: that of the Epilog. Returns a usage error if Slurm's variables are missing.
Result<EndedJob> ReadEndedJob(char* const* environment);

// Commands of Stasis in the name of a job's user.
class UserCommands {
 public:
  virtual ~UserCommands() = default;
  // Runs `stasis -q --no-daemon ARGS...`, and kills it after a while. No process that it has
  // started outlives it; returns kUnavailable if one cannot be killed, as in uninterruptible sleep.
  virtual Status Run(const std::vector<std::string>& args) = 0;
};

// Undoes operations that were killed with the job, frees arenas that no program uses any more, and
// unmounts them. Operations of other jobs of the same user go on, because their journals are
// locked, and memory with the only copy of data stays. Memory that is kept or ready for the user's
// other programs on this node is freed, and they allocate it again. Runs all steps and returns the
// first error, but stops at kUnavailable, because the next step would hang like the first. May be
// repeated.
Status FreeLeftovers(UserCommands& commands);

// Changes this process, which must be root's, to the user of the job for good; does nothing if it
// belongs to this user already. The commands have only HOME, PATH and `job.folders` as variables.
Result<std::unique_ptr<UserCommands>> BecomeUser(const EndedJob& job, const std::string& stasis);

}  // namespace stasis::slurm_setup
