// The file that a job's output goes to. A program without a terminal has it as its own descriptor
// and writes to it itself: nobody stands between whose end would be the program's.
#pragma once

#include <functional>
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

  // The job's own log, in the job's folder: what stands there is a plain file of its user's, or is
  // made. ELOOP: a link, which is not followed; EPERM: another's; ENOTSUP: no plain file; EMLINK:
  // of several names, in a folder that is not its user's alone. In his own only he gives it more,
  // as `cp -al` of all of it does.
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
  using Opener = std::function<Result<UniqueFd>(int flags, mode_t mode)>;
  static Result<OutputLog> OpenBy(const std::string& path, const Opener& open);

  std::string path_;
  UniqueFd fd_;
  FileId id_;
  bool created_ = false;
};

}  // namespace stasis::shim
