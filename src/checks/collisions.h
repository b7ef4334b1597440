// Names that a restored program needs for itself, and that another program has or is about to take:
// ports, names of Unix sockets, and files that it writes. Without these checks CRIU would replace
// the socket of a running program, and copies of one image that are restored at the same time would
// all listen on one port (CRIU sets SO_REUSEPORT while it restores).
//
// Sockets that hold a TCP port without listening are left to criu/tcp_ports.h, which can also drop
// closed ones.
#pragma once

#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/fd.h"
#include "base/result.h"
#include "criu/restored_names.h"

namespace stasis::checks {

// Names that this process is restoring. Other restores of the same user are refused these names
// until this object is destroyed or the process ends; from then on the restored program has them.
// A process may have only one such object for each `path`.
class NameClaims {
 public:
  // `path` is a file that all restores use. It is created if necessary.
  static Result<NameClaims> Open(const std::string& path);

  // Returns kAlreadyExists, naming the other restore, if that has claimed one of the names. Ports
  // that the program shares (InetPort::shared) are not claimed.
  Status Claim(const criu::RestoredNames& names) const;
  // `file` names the file in the error; `identity` is the same for all names of the file.
  Status ClaimFile(const std::string& identity, const std::string& file) const;

 private:
  explicit NameClaims(UniqueFd fd) : fd_(std::move(fd)) {}
  Status ClaimOne(const std::string& key, const std::string& what) const;

  UniqueFd fd_;
};

// Returns kAlreadyExists, naming the process, if a process in this network namespace listens on a
// TCP port, or has a UDP port or the name of a Unix socket.
Status CheckSocketNamesFree(const criu::RestoredNames& names);

struct WrittenFile {
  std::string path;
  std::string identity;  // device and inode
};
// Returns those of `paths` that are regular files. Returns kAlreadyExists, naming the process, if a
// process has one of them open or mapped for writing. Processes that the caller may not inspect are
// not found. Reads the files in a child process, because their file system may not answer.
Result<std::vector<WrittenFile>> CheckFilesNotWritten(const std::vector<std::string>& paths,
                                                      const Deadline& deadline);

}  // namespace stasis::checks
