// The TCP ports that a restore takes for the program, and what may keep it from them.
//
// For a minute after a connection was closed the kernel remembers it (TIME_WAIT) under the port
// that it had, on the side that closed first. Nobody may bind that port meanwhile, but for a socket
// with SO_REUSEADDR, and for that only if the closed one had it too. CRIU sets it; what the program
// closed shortly before its dump, or the dump itself, may not have had it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/result.h"
#include "criu/tcp_sockets.h"

namespace stasis::criu {

struct TcpPort {
  int family = 0;
  TcpAddress address{};
  uint16_t port = 0;
  bool v6only = false;
  std::string interface;  // of a link-local address

  auto operator<=>(const TcpPort&) const = default;
};
// "127.0.0.1:4711", "[::]:4711"
std::string ToString(const TcpPort& port);

// Those that CRIU will bind, each once, of its files.img: of sockets that listen, or only have a
// port. Connections are none: CRIU takes their ports by force (TCP_REPAIR). kInternal: it is not as
// CRIU 4 writes it.
Result<std::vector<TcpPort>> TcpPortsToBind(int files_img, uint64_t size_bytes);

struct FreedPorts {
  double waited_s = 0;     // in all
  std::string waited_for;  // the first port; empty: none
};

// Returns when each can be bound, in our network namespace, as CRIU does it. Closed connections
// that stand in the way are dropped by the kernel where it can and we may, else waited for; of a
// port that a living process has, none. kAlreadyExists names that process, or says why nobody can;
// kDeadlineExceeded says what a port is held by and for how long, at once when that is longer than
// there is time. kCancelled.
Result<FreedPorts> FreeTcpPorts(const std::vector<TcpPort>& ports, const Deadline& deadline,
                                const std::function<bool()>& cancelled);

}  // namespace stasis::criu
