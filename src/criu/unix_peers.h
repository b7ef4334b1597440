// Reads the connections between unix sockets from the kernel's sock_diag.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "base/result.h"
#include "process/proc.h"

namespace stasis::criu {

struct UnixSocket {
  uint64_t peer = 0;    // inode of the other end; 0 if there is none
  bool stream = false;  // SOCK_STREAM or SOCK_SEQPACKET
  std::string name;     // "/run/x.sock", "@abstract", or empty
};

class UnixSockets {
 public:
  // Reads the sockets in the network namespace of `pid`.
  static Result<UnixSockets> Read(process::HostPid pid);

  // Returns null if there is no such socket.
  const UnixSocket* Find(uint64_t inode) const;
  // Returns the inodes of all sockets with this name.
  std::set<uint64_t> WithName(const std::string& name) const;

 private:
  std::map<uint64_t, UnixSocket> sockets_;
};

}  // namespace stasis::criu
