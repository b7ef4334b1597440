// What of a tree's standard input, output and error leads out of the tree, and what is put in its
// place when the tree comes back. The job's log is looked for under every number: a program may
// have put its output aside.
//
//   what              at the dump                 at the restore
//   a pipe            nothing to say              inherit "pipe:[INO]"; input is left to CRIU: what
//                                                 was in the pipe is read first, then its end
//   the job's log     nothing to say              inherit its path without the first '/': the log
//                                                 of the job that it is restored as
//   a log file that   nothing to say              the same key: the file, which may have grown or
//   be is only appended to                           gone; with --log the job's log instead a
//   terminal        external "tty[RDEV:DEV]"    inherit the same; it must be a terminal. Whose
//                                                 controlling one it is: terminals.h
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

// Recorded in the image's manifest.
struct ExternalFd {
  std::string key;        // CRIU's name of it in `inherit_fd`
  std::string kind;       // "log", "pipe", "file", "tty", "socket"
  process::HostPid pid;   // the first process that holds it
  int fd = -1;            // and as which descriptor
  std::string direction;  // "in", "out", "both", seen from the program
  std::string path;       // where it has one
};

struct StdioPlan {
  std::vector<ExternalFd> externals;
  bool shell_job = false;  // the root is not a session leader
  // Sentences about what will not come back as it was.
  std::vector<std::string> notes;

  void ApplyTo(Options& options) const;  // the dump side
};

// `log`: the job's, where the tree is one.
Result<StdioPlan> PlanStdio(const process::ProcessTree& tree, const FileId& log = {});

// Numbers in the CRIU process that stand ready for a restored program. CRIU closes a number that it
// has handed on, so each serves for one key.
struct Replacements {
  std::vector<int> output;  // the job's log
  std::vector<int> input;
  std::vector<int> null;  // /dev/null, open for both
  std::vector<int> terminal;
  int first_free = 20;      // numbers from here on may be used for log files
  bool all_to_log = false;  // what the program had sent to a file of its user goes to `output` too
};

struct InheritPlan {
  std::vector<InheritFd> inherit;
  std::map<int, UniqueFd> files;   // number in CRIU -> ours: CRIU must be started with these
  std::vector<std::string> notes;  // sentences for the user
};

// The restore side. kFailedPrecondition when the program needs something that there is none for.
Result<InheritPlan> PlanInherit(const std::vector<ExternalFd>& externals,
                                const Replacements& replacements);

// While the restored tree is still stopped. CRIU opens what takes a pipe's place anew, with the
// pipe's flags and at the position 0: `log` would be overwritten from its start.
Status AppendOnly(const process::ProcessTree& tree, const FileId& log);

}  // namespace stasis::criu
