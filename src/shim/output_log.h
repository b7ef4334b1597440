// The file that receives a job's output. A program without a terminal writes to it directly through
// its own descriptor, so the output depends on no other process.
#pragma once

#include <functional>
#include <string>

#include "base/fd.h"
#include "base/file.h"
#include "base/result.h"

namespace stasis::shim {

class OutputLog {
 public:
  // Opens a file for appending; a new one gets mode 0666 less the umask. Returns ENOTSUP for a
  // pipe, socket or terminal, because the other end may close before the job ends.
  static Result<OutputLog> Open(const std::string& path);

  // Opens or creates the job's own log in the job's directory. The file must be a regular file of
  // the user. Errors: ELOOP for a link, EPERM for another user's file, ENOTSUP for other types,
  // EMLINK for several hard links in a directory that other users can write to. In a directory that
  // only the user can write to, several links are accepted, because only the user can have created
  // them, for example by `cp -al`.
  static Result<OutputLog> OpenJobs(const std::string& path);

  int fd() const { return fd_.get(); }
  const FileId& id() const { return id_; }

  // Returns up to about 16 KiB from the end of the file, or nothing if it cannot be read.
  std::string LastBytes() const;

  // Closes the file, so that removing it frees its space.
  void Close() { fd_.Reset(); }
  // Removes the file if Open created it, after a failed start.
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
