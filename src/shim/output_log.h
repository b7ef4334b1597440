// The file that a job's output goes to. A program without a terminal has it as its own descriptor
// and writes to it itself: nobody stands between whose end would be the program's.
#pragma once

#include <string>

#include "base/fd.h"
#include "base/file.h"
#include "base/result.h"

namespace stasis::shim {

class OutputLog {
 public:
  // Opened for appending; a new file gets the mode that the caller's umask leaves. A pipe, a socket
  // or a terminal is refused with ENOTSUP: its other end may go away before the job does.
  static Result<OutputLog> Open(const std::string& path);

  // The job's own log, in a folder that is its user's alone: what stands there is a plain file of
  // his with no other name, or is made. ELOOP: a link, which is not followed; EPERM: another's, or
  // of several names; ENOTSUP: no plain file.
  static Result<OutputLog> OpenJobs(const std::string& path);

  int fd() const { return fd_.get(); }
  const FileId& id() const { return id_; }

  // The end of what it holds, as far as that can be read: some 16 KiB.
  std::string LastBytes() const;

  // Lets go of it: a log that its user removes shall not keep its space.
  void Close() { fd_.Reset(); }
  // For a start that failed: takes a file away again that Open made.
  void RemoveIfCreated();

 private:
  static Result<OutputLog> OpenBy(const std::string& path,
                                  Result<UniqueFd> (*open)(const std::string&, int, mode_t));

  std::string path_;
  UniqueFd fd_;
  FileId id_;
  bool created_ = false;
};

}  // namespace stasis::shim
