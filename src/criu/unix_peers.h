// Which unix socket is connected to which, as the kernel tells it (sock_diag).
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/result.h"
#include "process/proc.h"

namespace stasis::criu {

struct UnixSocket {
  uint64_t peer = 0;    // inode of the other end; 0: none
  bool stream = false;  // stream or seqpacket: a connection, not an address
  bool listening = false;
  std::string name;  // "/run/x.sock", "@abstract", empty
};

class UnixSockets {
 public:
  // Those of the network namespace of `pid`.
  static Result<UnixSockets> Read(process::HostPid pid);

  const UnixSocket* Find(uint64_t inode) const;

 private:
  std::map<uint64_t, UnixSocket> sockets_;
};

}  // namespace stasis::criu
