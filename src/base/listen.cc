#include "base/listen.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>
#include <set>

namespace stasis {
namespace {

// The port is at the same offset in IPv4 and IPv6 addresses.
in_port_t& PortIn(sockaddr* address) { return reinterpret_cast<sockaddr_in*>(address)->sin_port; }

// `alone` is true if no socket for another address is to use the port.
Result<UniqueFd> ListenAt(const addrinfo& at, bool alone, int backlog) {
  UniqueFd socket(::socket(at.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
  if (!socket) return FailErrno(errno, "socket");
  const int yes = 1;
  // A restarted daemon must not wait for connections of its predecessor in TIME_WAIT.
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (at.ai_family == AF_INET6 && !alone) {
    ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &yes, sizeof yes);
  }
  if (::bind(socket.get(), at.ai_addr, at.ai_addrlen) != 0 ||
      ::listen(socket.get(), backlog) != 0) {
    return FailErrno(errno, "listen");
  }
  return socket;
}

Result<in_port_t> PortOf(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return FailErrno(errno, "getsockname");
  }
  return PortIn(reinterpret_cast<sockaddr*>(&address));
}

}  // namespace

Result<TcpListener> ListenTcp(const std::string& setting, const std::string& address, int backlog) {
  const size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (host.starts_with('[')) host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host == "*" ? nullptr : host.c_str(),
                                  address.substr(colon + 1).c_str(), &hints, &found);
  if (error != 0) {
    return Fail(Code::kInvalidArgument, Domain::kUsage, 0,
                fmt::format("cannot listen at {} {}: {}", setting, address, ::gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> all(found, ::freeaddrinfo);
  TcpListener listener;
  in_port_t port = PortIn(found->ai_addr);
  std::set<std::string> had;  // a name may resolve to one address twice
  Error last;
  for (addrinfo* at = found; at != nullptr; at = at->ai_next) {
    PortIn(at->ai_addr) = 0;
    if (!had.emplace(reinterpret_cast<const char*>(at->ai_addr), at->ai_addrlen).second) continue;
    PortIn(at->ai_addr) = port;
    auto socket = ListenAt(*at, found->ai_next == nullptr, backlog);
    if (!socket) {
      last = std::move(socket).error();
      // If another process holds the port at one of the addresses, some clients would connect to
      // that process.
      if (last.raw == EADDRINUSE) break;
      continue;
    }
    STASIS_ASSIGN(port, PortOf(socket->get()));
    listener.sockets.push_back(std::move(*socket));
  }
  if (listener.sockets.empty() || last.raw == EADDRINUSE) {
    last.context = {fmt::format("cannot listen at {} {}", setting, address)};
    return Fail(
        std::move(last).WithHint("choose another address in the configuration, or leave it empty"));
  }
  listener.address = fmt::format("{}:{}", address.substr(0, colon), ntohs(port));
  return listener;
}

}  // namespace stasis
