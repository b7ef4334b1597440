// Finds standard input, output and error of a tree's processes if they lead out of the tree, and
// plans their replacements at a restore. Terminals and the job's log are replaced under every
// descriptor number, because a program may have duplicated its output.
//
//   descriptor        at the dump                 at the restore
//   a pipe            nothing                     inherit "pipe:[INO]"; CRIU restores an input
//                                                 pipe: its content, then end-of-file
//   the job's log     nothing                     inherit its path without the first '/': the log
//                                                 of the restored job
//   a log file that   nothing                     the same key: the file, which may have grown or
//   only grows                                    be missing; with --log the job's log instead
//   a terminal        external "tty[RDEV:DEV]"    inherit the same; must be a terminal. Controlling
//                                                 terminals: terminals.h
//   a unix stream     external "unix[INO]"        inherit "socket:[INO]"
//   to another tree
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/file.h"
#include "base/result.h"
#include "criu/client.h"
#include "criu/options.h"
#include "process/tree.h"

namespace stasis::criu {

// An external descriptor, as recorded in the image's manifest.
struct ExternalFd {
  std::string key;        // CRIU's key in `inherit_fd`
  std::string kind;       // "log", "pipe", "file", "tty", "socket"
  process::HostPid pid;   // the first process that has it open
  int fd = -1;            // the descriptor's number in that process
  std::string direction;  // "in", "out" or "both", from the program's point of view
  std::string path;       // empty if the descriptor has no path
};

struct StdioPlan {
  std::vector<ExternalFd> externals;
  bool shell_job = false;  // the root is not a session leader
  // Sentences about properties that the restore will not preserve.
  std::vector<std::string> notes;

  void ApplyTo(Options& options) const;  // sets the options of the dump
};

// `log` identifies the job's log, if the tree belongs to a job.
Result<StdioPlan> PlanStdio(const process::ProcessTree& tree, const FileId& log = {});

// Descriptor numbers in the CRIU process that are prepared for a restored program. CRIU closes a
// number after it has passed the descriptor on, so each number serves one key.
struct Replacements {
  std::vector<int> output;  // the job's log
  std::vector<int> input;
  std::vector<int> null;  // /dev/null, opened for reading and writing
  std::vector<int> terminal;
  int first_free = 20;      // numbers from this one on may be used for log files
  bool all_to_log = false;  // also redirect output that went to a user's file to `output`
};

struct InheritPlan {
  std::vector<InheritFd> inherit;
  // By their numbers in CRIU. Pass them to the CRIU that is started.
  std::map<int, UniqueFd> files;
  std::vector<std::string> notes;  // sentences for the user
};

// Plans a restore. Returns kFailedPrecondition if a required replacement is missing.
Result<InheritPlan> PlanInherit(const std::vector<ExternalFd>& externals,
                                const Replacements& replacements);

// Sets O_APPEND on the tree's descriptors of `log`. Call this while the restored tree is still
// stopped. CRIU reopens the replacement of a pipe with the pipe's flags and position 0, so writes
// would overwrite the log from its start.
Status AppendOnly(const process::ProcessTree& tree, const FileId& log);

}  // namespace stasis::criu
