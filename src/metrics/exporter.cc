#include "metrics/exporter.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <vector>

#include "base/deadline.h"
#include "base/fd.h"
#include "base/listen.h"
#include "metrics/http_request.h"

namespace stasis::metrics {
namespace {

// When more come, the one that has been here longest goes: a scraper is done at once, so it is one
// that only sits there.
constexpr size_t kMaxConnections = 16;
constexpr std::chrono::seconds kLongest{5};  // from the connection to the end of the answer

struct Connection {
  UniqueFd socket;
  Deadline deadline = Deadline::In(kLongest);
  std::string received;
  std::string answer;  // empty: not asked yet
  size_t sent = 0;
};

class Loop {
 public:
  Loop(std::vector<UniqueFd> listeners, std::function<std::string()> text)
      : listeners_(std::move(listeners)), text_(std::move(text)) {}

  [[noreturn]] void Run() {
    for (;;) {
      std::vector<pollfd> waits;
      int timeout = -1;
      for (const Connection& c : connections_) {
        const short wanted = c.answer.empty() ? POLLIN : POLLOUT;
        waits.push_back({c.socket.get(), wanted, 0});
        const int left = c.deadline.PollTimeout();
        timeout = timeout < 0 ? left : std::min(timeout, left);
      }
      const size_t ours = waits.size();
      for (const UniqueFd& listener : listeners_) waits.push_back({listener.get(), POLLIN, 0});
      if (::poll(waits.data(), waits.size(), timeout) < 0 && errno != EINTR) Pause();
      for (size_t i = connections_.size(); i-- > 0;) {
        Connection& c = connections_[i];
        const bool goes_on = waits[i].revents == 0 || GoesOn(c);
        if (!goes_on || c.deadline.passed()) {
          connections_.erase(connections_.begin() + static_cast<ptrdiff_t>(i));
        }
      }
      for (size_t i = ours; i < waits.size(); ++i) {
        if (waits[i].revents != 0) Accept(waits[i].fd);
      }
    }
  }

 private:
  // What the kernel has none of now, it may have later.
  static void Pause() { ::poll(nullptr, 0, 100); }

  void Accept(int listener) {
    UniqueFd socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
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

  const std::vector<UniqueFd> listeners_;
  const std::function<std::string()> text_;
  std::vector<Connection> connections_;  // the oldest first
};

}  // namespace

Result<std::unique_ptr<Exporter>> Exporter::Start(const std::string& address,
                                                  std::function<std::string()> text) {
  STASIS_ASSIGN(TcpListener listener, ListenTcp("metrics.listen", address, kMaxConnections));
  auto loop = std::make_shared<Loop>(std::move(listener.sockets), std::move(text));
  std::thread([loop] { loop->Run(); }).detach();
  return std::unique_ptr<Exporter>(new Exporter(std::move(listener.address)));
}

}  // namespace stasis::metrics
