#include "api/metrics_exporter.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "api/http_request.h"
#include "base/deadline.h"
#include "base/fd.h"
#include "base/listen.h"
#include "base/thread.h"

namespace stasis::api {
namespace {

// The limit for connections. At the limit, a new connection replaces the oldest one. A scraper
// finishes at once, so the oldest connection is idle.
constexpr size_t kMaxScrapers = 16;
constexpr std::chrono::seconds kScrapeTimeout{5};  // from accept to the end of the answer

struct Scraper {
  UniqueFd socket;
  Deadline deadline = Deadline::In(kScrapeTimeout);
  std::string received;
  std::string answer;  // empty until the request is complete
  size_t sent = 0;
};

class ScrapeLoop {
 public:
  ScrapeLoop(std::vector<UniqueFd> listeners, std::function<std::string()> text)
      : listeners_(std::move(listeners)), text_(std::move(text)) {}

  [[noreturn]] void Run() {
    for (;;) {
      std::vector<pollfd> waits;
      int timeout = -1;
      for (const Scraper& c : connections_) {
        const short wanted = c.answer.empty() ? POLLIN : POLLOUT;
        waits.push_back({c.socket.get(), wanted, 0});
        const int left = c.deadline.PollTimeout();
        timeout = timeout < 0 ? left : std::min(timeout, left);
      }
      const size_t first_listener = waits.size();
      for (const UniqueFd& listener : listeners_) waits.push_back({listener.get(), POLLIN, 0});
      if (::poll(waits.data(), waits.size(), timeout) < 0 && errno != EINTR) Pause();
      for (size_t i = connections_.size(); i-- > 0;) {
        Scraper& c = connections_[i];
        const bool stays = waits[i].revents == 0 || Advance(c);
        if (!stays || c.deadline.passed()) {
          connections_.erase(connections_.begin() + static_cast<ptrdiff_t>(i));
        }
      }
      for (size_t i = first_listener; i < waits.size(); ++i) {
        if (waits[i].revents != 0) Accept(waits[i].fd);
      }
    }
  }

 private:
  // Waits a moment after a failure, because descriptors or kernel memory are short.
  static void Pause() { ::poll(nullptr, 0, 100); }

  void Accept(int listener) {
    UniqueFd socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) Pause();
      return;
    }
    if (connections_.size() >= kMaxScrapers) connections_.erase(connections_.begin());
    connections_.emplace_back().socket = std::move(socket);
  }

  // Receives or sends as much as possible. Returns false when the connection is to be closed.
  bool Advance(Scraper& c) {
    if (!c.answer.empty()) return Send(c);
    char bytes[kMaxRequestBytes];
    const ssize_t got = ::recv(c.socket.get(), bytes, kMaxRequestBytes - c.received.size(), 0);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    c.received.append(bytes, static_cast<size_t>(got));
    const HttpRequest request = ParseHttpRequest(c.received);
    if (request == HttpRequest::kIncomplete) return true;
    c.answer = HttpResponse(request, request == HttpRequest::kMetrics ? text_() : "");
    return Send(c);
  }

  static bool Send(Scraper& c) {
    const ssize_t sent = ::send(c.socket.get(), c.answer.data() + c.sent, c.answer.size() - c.sent,
                                MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) return errno == EAGAIN || errno == EINTR;
    c.sent += static_cast<size_t>(sent);
    return c.sent < c.answer.size();
  }

  const std::vector<UniqueFd> listeners_;
  const std::function<std::string()> text_;
  std::vector<Scraper> connections_;  // the oldest first
};

}  // namespace

Result<std::unique_ptr<MetricsExporter>> MetricsExporter::Start(const std::string& address,
                                                                std::function<std::string()> text) {
  STASIS_ASSIGN(TcpListener listener, ListenTcp("metrics.listen", address, kMaxScrapers));
  auto loop = std::make_shared<ScrapeLoop>(std::move(listener.sockets), std::move(text));
  STASIS_ASSIGN(Thread thread, Thread::Start([loop] { loop->Run(); }));
  std::move(thread).Detach();
  return std::unique_ptr<MetricsExporter>(new MetricsExporter(std::move(listener.address)));
}

}  // namespace stasis::api
