// Lists the kernel's TCP sockets of one port (sock_diag), including those that no process has open.
#pragma once

#include <linux/inet_diag.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"

namespace stasis::criu {

// IPv4 addresses have the form ::ffff:a.b.c.d; the unspecified address of both families is all
// zeros.
using TcpAddress = std::array<uint8_t, 16>;
// `words` are in network byte order: one for IPv4, four for IPv6.
TcpAddress ToTcpAddress(int family, const uint32_t* words);

struct TcpSocket {
  int family = 0;
  int state = 0;  // TCP_LISTEN and so on
  TcpAddress address{};
  uint64_t inode = 0;                   // 0 if no process has the socket open
  std::chrono::milliseconds expires{};  // remaining time of the socket's timer
  inet_diag_sockid id{};

  // Returns true if the program has closed the socket, but the kernel still has it.
  bool closed() const;
  // Returns true if the socket is closed and all written data is acknowledged. The kernel keeps
  // such a socket only to answer late packets.
  bool only_remembered() const;
  // The kernel's id of the socket, never reused.
  uint64_t cookie() const;
};

class TcpSockets {
 public:
  static Result<TcpSockets> Open();

  // Returns the sockets of both families in this network namespace.
  Result<std::vector<TcpSocket>> WithLocalPort(uint16_t port);
  // Destroys the socket. Also succeeds if the socket no longer exists, even if its address was
  // reused. Returns kPermissionDenied without CAP_NET_ADMIN, and kUnimplemented if the kernel
  // cannot destroy sockets (before 6.0, or without CONFIG_INET_DIAG_DESTROY).
  Status Destroy(const TcpSocket& socket);

 private:
  explicit TcpSockets(UniqueFd fd) : fd_(std::move(fd)) {}

  UniqueFd fd_;
};

}  // namespace stasis::criu
