// The kernel's TCP sockets under one port (sock_diag), including those without a process.
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
  uint64_t inode = 0;                   // 0: no process has it open
  std::chrono::milliseconds expires{};  // remaining time of its timer
  inet_diag_sockid id{};

  // The program has closed it, but the kernel still has it.
  bool closed() const;
  // Closed with all written data acknowledged. The kernel keeps it only to answer late packets.
  bool only_remembered() const;
  // The kernel's id of the socket, never reused.
  uint64_t cookie() const;
};

class TcpSockets {
 public:
  static Result<TcpSockets> Open();

  // Returns the sockets of both families in this network namespace.
  Result<std::vector<TcpSocket>> WithLocalPort(uint16_t port);
  // Destroys the socket. Succeeds also if it no longer exists, even if its address was reused.
  // Returns kPermissionDenied without CAP_NET_ADMIN, kUnimplemented if the kernel does not support
  // it (before 6.0, or without CONFIG_INET_DIAG_DESTROY).
  Status Destroy(const TcpSocket& socket);

 private:
  explicit TcpSockets(UniqueFd fd) : fd_(std::move(fd)) {}

  UniqueFd fd_;
};

}  // namespace stasis::criu
