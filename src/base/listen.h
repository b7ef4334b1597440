// Opens TCP listeners.
#pragma once

#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"

namespace stasis {

struct TcpListener {
  // One socket for each address of HOST that could be bound.
  std::vector<UniqueFd> sockets;
  std::string address;  // the bound HOST:PORT, with the real port if port 0 was requested
};

// Opens non-blocking listeners at HOST:PORT, [HOST]:PORT or *:PORT. `setting` names the setting in
// errors.
Result<TcpListener> ListenTcp(const std::string& setting, const std::string& address, int backlog);

}  // namespace stasis
