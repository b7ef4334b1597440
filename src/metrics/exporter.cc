#include "metrics/exporter.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <vector>

#include "base/deadline.h"
#include "metrics/http_request.h"

namespace stasis::metrics {
namespace {

// When more come, the one that has been here longest goes: a scraper is done at once, so it is one
// that only sits there.
constexpr size_t kMaxConnections = 16;
constexpr std::chrono::seconds kLongest{5};  // from the connection to the end of the answer

Result<UniqueFd> Listen(const std::string& address) {
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
                fmt::format("metrics.listen {}: {}", address, ::gai_strerror(error)));
  }
  std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> all(found, ::freeaddrinfo);
  UniqueFd socket(
      ::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
  if (!socket) return FailErrno(errno, "socket");
  // A daemon that comes after another need not wait for what the kernel still holds of that one's.
  const int yes = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (::bind(socket.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      ::listen(socket.get(), 16) != 0) {
    return Fail(ErrnoError(errno, "listen at metrics.listen " + address)
                    .WithHint("another port, or none, is for the configuration to say"));
  }
  return socket;
}

Result<int> PortOf(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return FailErrno(errno, "getsockname");
  }
  // At the same place in both kinds of addresses.
  return ntohs(reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

struct Connection {
  UniqueFd socket;
  Deadline deadline = Deadline::In(kLongest);
  std::string received;
  std::string answer;  // empty: not asked yet
  size_t sent = 0;
};

class Loop {
 public:
  Loop(int listener, std::function<std::string()> text)
      : listener_(listener), text_(std::move(text)) {}

  [[noreturn]] void Run() {
    for (;;) {
      std::vector<pollfd> waits = {{listener_, POLLIN, 0}};
      int timeout = -1;
      for (const Connection& c : connections_) {
        const short wanted = c.answer.empty() ? POLLIN : POLLOUT;
        waits.push_back({c.socket.get(), wanted, 0});
        const int left = c.deadline.PollTimeout();
        timeout = timeout < 0 ? left : std::min(timeout, left);
      }
      if (::poll(waits.data(), waits.size(), timeout) < 0 && errno != EINTR) Pause();
      for (size_t i = connections_.size(); i-- > 0;) {
        Connection& c = connections_[i];
        const bool goes_on = waits[i + 1].revents == 0 || GoesOn(c);
        if (!goes_on || c.deadline.passed()) {
          connections_.erase(connections_.begin() + static_cast<ptrdiff_t>(i));
        }
      }
      if (waits[0].revents != 0) Accept();
    }
  }

 private:
  // What the kernel has none of now, it may have later.
  static void Pause() { ::poll(nullptr, 0, 100); }

  void Accept() {
    UniqueFd socket(::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) Pause();
      return;
    }
    if (connections_.size() >= kMaxConnections) connections_.erase(connections_.begin());
    connections_.emplace_back().socket = std::move(socket);
  }

  // False: it is over.
  bool GoesOn(Connection& c) {
    if (!c.answer.empty()) return Send(c);
    char bytes[kMaxRequestBytes];
    const ssize_t got = ::recv(c.socket.get(), bytes, kMaxRequestBytes - c.received.size(), 0);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    c.received.append(bytes, static_cast<size_t>(got));
    const Asked asked = WhatIsAsked(c.received);
    if (asked == Asked::kMore) return true;
    c.answer = AnswerTo(asked, asked == Asked::kMetrics ? text_() : "");
    return Send(c);
  }

  static bool Send(Connection& c) {
    const ssize_t sent = ::send(c.socket.get(), c.answer.data() + c.sent, c.answer.size() - c.sent,
                                MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) return errno == EAGAIN || errno == EINTR;
    c.sent += static_cast<size_t>(sent);
    return c.sent < c.answer.size();
  }

  const int listener_;
  const std::function<std::string()> text_;
  std::vector<Connection> connections_;  // the oldest first
};

}  // namespace

Result<std::unique_ptr<Exporter>> Exporter::Start(const std::string& address,
                                                  std::function<std::string()> text) {
  STASIS_ASSIGN(UniqueFd listener, Listen(address));
  STASIS_ASSIGN(const int port, PortOf(listener.get()));
  std::thread([fd = listener.get(), text = std::move(text)] { Loop(fd, text).Run(); }).detach();
  return std::unique_ptr<Exporter>(new Exporter(
      std::move(listener), fmt::format("{}:{}", address.substr(0, address.rfind(':')), port)));
}

}  // namespace stasis::metrics
