// The TCP connections in CRIU's images of a dump with --tcp keep, and the block of their packets
// (network lock) that CRIU made for the dump and removes at the end of the restore.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "criu/options.h"
#include "criu/tcp_sockets.h"

namespace stasis::criu {

struct TcpConnection {
  TcpAddress local{}, remote{};
  uint16_t local_port = 0, remote_port = 0;

  auto operator<=>(const TcpConnection&) const = default;
};
// Formats as "127.0.0.1:4711 to 10.0.0.1:80".
std::string ToString(const TcpConnection& connection);
// Formats as "127.0.0.1" or "::1".
std::string ToString(const TcpAddress& address);
bool IsIpv4(const TcpAddress& address);

struct KeptConnections {
  NetworkLock lock = NetworkLock::kSkip;  // never kAuto
  std::string table;  // name of CRIU's table of nftables in the family inet; empty for other locks
  std::vector<TcpConnection> all;  // one for each end in the images, sorted
  std::vector<uint32_t> inodes;    // of the same sockets, in no order
};

// Reads CRIU's images of a complete dump from the folder. Returns kInternal if their format is not
// that of CRIU 4, or if there are more than 65536 connections.
Result<KeptConnections> ReadKeptConnections(const std::string& images_dir);

// Returns the connections whose other end is not in the images.
std::vector<TcpConnection> FindOutside(const KeptConnections& kept);

// Returns true if a connection has data that the program had written and the kernel had not sent.
// CRIU cannot restore such data without the lock.
Result<bool> HasUnsentData(const std::string& images_dir, const KeptConnections& kept);

}  // namespace stasis::criu
