// The files that the shim writes to the job's directory (shim_protocol.h). `jobs/record.h` reads
// them.
#pragma once

#include <string>

#include "base/fd.h"
#include "base/file.h"
#include "base/result.h"
#include "process/proc.h"

namespace stasis::shim {

class JobFolder {
 public:
  // Takes the directory's shim.lock. Waits for the shim of an earlier run to write its exit record.
  static Result<JobFolder> Open(const std::string& path);

  // Allocates the space of the exit record in advance.
  Status ReserveExit();
  // Records the processes of the job. Earlier exit.json and `dumped` files become invalid, because
  // they name other processes. `log` identifies the log file independently of its name.
  Status RecordProcesses(const process::ProcessId& shim, const process::ProcessId& root,
                         const FileId& log);
  // Records how `root` ended, and releases the lock.
  Status RecordExit(const process::ProcessId& root, int wait_status);
  // Removes the records, after a failed start.
  void Forget();

 private:
  std::string File(const char* name) const { return path_ + "/" + name; }
  bool IsMarkedDumped(const process::ProcessId& root) const;

  std::string path_;
  // The job's directory, opened, so that it can be used even after it was renamed or replaced.
  UniqueFd folder_;
  UniqueFd lock_;
  UniqueFd reserve_;
};

}  // namespace stasis::shim
