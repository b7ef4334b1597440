// TCP addresses to listen at.
#pragma once

#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"

namespace stasis {

struct TcpListener {
  // One for each address that HOST stands for and that could be had.
  std::vector<UniqueFd> sockets;
  std::string address;  // HOST:PORT as it is, when port 0 let the kernel choose
};

// At HOST:PORT, [HOST]:PORT or *:PORT; not blocking. `setting` is who wants it, for errors.
Result<TcpListener> ListenTcp(const std::string& setting, const std::string& address, int backlog);

}  // namespace stasis
