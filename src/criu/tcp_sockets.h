// The kernel's TCP sockets under one port, as it tells them (sock_diag), also those that no process
// has any more.
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

// An IPv4 address is ::ffff:a.b.c.d here, the unspecified one of either family all zeros.
using TcpAddress = std::array<uint8_t, 16>;
// `words` as they lie in memory: one of IPv4, four of IPv6.
TcpAddress ToTcpAddress(int family, const uint32_t* words);

struct TcpSocket {
  int family = 0;
  int state = 0;  // TCP_LISTEN and so on
  TcpAddress address{};
  uint64_t inode = 0;                   // 0: no process has it
  std::chrono::milliseconds expires{};  // what its timer has left
  inet_diag_sockid id{};

  // The program has closed it, and the kernel has not done with it.
  bool closed() const;
  // Closed, and nothing of what the program had written is on its way any more: the other side has
  // it. What is left answers late packets.
  bool only_remembered() const;
  // The kernel's name for it, which no other socket gets.
  uint64_t cookie() const;
};

class TcpSockets {
 public:
  static Result<TcpSockets> Open();

  // In our network namespace, of both families.
  Result<std::vector<TcpSocket>> WithLocalPort(uint16_t port);
  // Success too when it is gone already, also when another has its numbers. kPermissionDenied
  // without CAP_NET_ADMIN; kUnimplemented by a kernel that cannot (before 6.0, or without
  // CONFIG_INET_DIAG_DESTROY).
  Status Destroy(const TcpSocket& socket);

 private:
  explicit TcpSockets(UniqueFd fd) : fd_(std::move(fd)) {}

  UniqueFd fd_;
};

}  // namespace stasis::criu
