// What the shim writes to the job's folder: see the list of files in shim_protocol.h.
// `jobs/record.h` reads it.
#pragma once

#include <string>

#include "base/fd.h"
#include "base/file.h"
#include "base/result.h"
#include "process/proc.h"

namespace stasis::shim {

class JobFolder {
 public:
  // Takes the folder's shim.lock, waiting for the shim of an earlier run to write its last word.
  static Result<JobFolder> Open(const std::string& path);

  // Takes the space that the record of the end will need.
  Status ReserveExit();
  // From here on the job is these two processes: what exit.json and `dumped` say of others is void.
  // `log`: what their output goes to, whatever its name will be.
  Status RecordProcesses(const process::ProcessId& shim, const process::ProcessId& root,
                         const FileId& log);
  // The last word: how `root` ended. Gives the lock away.
  Status RecordExit(const process::ProcessId& root, int wait_status);
  // Takes away what was written, for a start that failed.
  void Forget();

 private:
  std::string File(const char* name) const { return path_ + "/" + name; }
  bool IsMarkedDumped(const process::ProcessId& root) const;

  std::string path_;
  // This folder, whatever has its name by the time that the job ends.
  UniqueFd folder_;
  UniqueFd lock_;
  UniqueFd reserve_;
};

}  // namespace stasis::shim
