// The TCP ports that a restore needs, and conflicts with sockets that occupy them.
//
// The side that closes a connection first keeps it in TIME_WAIT for a minute. During this time its
// port can be bound only with SO_REUSEADDR, and only if the closed socket had SO_REUSEADDR too.
// CRIU sets SO_REUSEADDR on the sockets that it creates, but a connection that the program closed
// shortly before the dump, or that the dump closed, may not have had it.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/result.h"
#include "criu/tcp_sockets.h"

namespace stasis::criu {

// A port of TCP or UDP, as CRIU binds it.
struct InetPort {
  int family = 0;
  TcpAddress address{};
  uint16_t port = 0;
  bool v6only = false;
  std::string interface;  // for a link-local address
  bool shared = false;    // the program lets other sockets bind it (SO_REUSEPORT)

  auto operator<=>(const InetPort&) const = default;
};
// Formats as "127.0.0.1:4711" or "[::]:4711".
std::string ToString(const InetPort& port);

// Returns true if a socket with this address may occupy `port`. The unspecified IPv6 address
// includes all of IPv4 unless the socket is v6only. The kernel does not report v6only for a closed
// socket.
bool Overlap(const InetPort& port, int family, const TcpAddress& address);

// Returns "process 4711 (python3)" for the first visible process that has one of the sockets
// ("socket:[815]") open, or an empty text.
std::string HolderOf(const std::set<std::string>& sockets);

struct FreedPorts {
  double waited_s = 0;     // total time waited
  std::string waited_for;  // the first port that was not free at once; empty if all were
};

// Returns when every port can be bound in this network namespace the way CRIU binds it. Drops
// closed connections that occupy a port if the kernel and the user's rights permit it. Otherwise
// waits for their end. Returns
// - kAlreadyExists for a port in use; the error names the process, or the reason why the process
//   cannot be found,
// - kDeadlineExceeded with the remaining time, at once if it exceeds the deadline,
// - kCancelled.
Result<FreedPorts> FreeTcpPorts(const std::vector<InetPort>& ports, const Deadline& deadline,
                                const std::function<bool()>& cancelled);

}  // namespace stasis::criu
