#include "criu/tcp_ports.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <thread>

#include "process/search.h"

namespace stasis::criu {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLook{1000};    // interval of checks for cancellation while waiting
constexpr milliseconds kOverdue{250};  // the kernel's long timers may fire seconds late
constexpr size_t kDropsPerLook = 256;  // a few milliseconds in the kernel
constexpr TcpAddress kAny{};

struct Address {
  union {
    sockaddr any;
    sockaddr_in v4;
    sockaddr_in6 v6;
  };
  socklen_t size = 0;
};

Address ToSockaddr(const InetPort& port) {
  Address address{};
  if (port.family == AF_INET) {
    address.v4.sin_family = AF_INET;
    address.v4.sin_port = htons(port.port);
    std::memcpy(&address.v4.sin_addr, port.address.data() + 12, sizeof address.v4.sin_addr);
    address.size = sizeof address.v4;
  } else {
    address.v6.sin6_family = AF_INET6;
    address.v6.sin6_port = htons(port.port);
    std::memcpy(&address.v6.sin6_addr, port.address.data(), sizeof address.v6.sin6_addr);
    if (!port.interface.empty())
      address.v6.sin6_scope_id = ::if_nametoindex(port.interface.c_str());
    address.size = sizeof address.v6;
  }
  return address;
}

// Binds as CRIU's open_inet_sk does (criu/sk-inet.c). Ignores errors other than EADDRINUSE, because
// CRIU reports them.
bool IsInUse(const InetPort& port) {
  UniqueFd fd(::socket(port.family, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP));
  if (!fd) return false;
  const int yes = 1;
  auto set = [&](int level, int name) { ::setsockopt(fd.get(), level, name, &yes, sizeof yes); };
  if (port.v6only) set(SOL_IPV6, IPV6_V6ONLY);
  set(SOL_SOCKET, SO_REUSEADDR);
  set(SOL_SOCKET, SO_REUSEPORT);
  if (port.family == AF_INET6) set(SOL_IP, IP_FREEBIND);
  const Address address = ToSockaddr(port);
  return ::bind(fd.get(), &address.any, address.size) != 0 && errno == EADDRINUSE;
}

bool Overlap(const InetPort& port, const TcpSocket& socket) {
  return Overlap(port, socket.family, socket.address);
}

// Reports that the address is in use by an unknown process.
tl::unexpected<Error> Unseen(const InetPort& port, const Error& why) {
  return Fail(
      Code::kAlreadyExists,
      fmt::format("the program's port {} is in use, and the process cannot be determined: {}",
                  ToString(port), why.ToString()),
      "End the process that listens there, then restore again. If only closed connections hold the "
      "port, it becomes free after a minute.");
}

class Freeing {
 public:
  Freeing(TcpSockets kernel, const Deadline& deadline, const std::function<bool()>& cancelled)
      : kernel_(std::move(kernel)), deadline_(deadline), cancelled_(cancelled) {}

  Status Free(const InetPort& port) {
    dropped_.clear();
    while (IsInUse(port)) {
      auto listed = kernel_.WithLocalPort(port.port);
      if (!listed) return Unseen(port, listed.error());
      std::vector<TcpSocket> sockets = *std::move(listed);
      std::erase_if(sockets, [&](const TcpSocket& socket) { return !Overlap(port, socket); });
      // A live process may hold the port for any length of time, and may own the closed connections
      // too. So report an error instead of waiting.
      if (sockets.empty() || std::any_of(sockets.begin(), sockets.end(),
                                         [](const auto& socket) { return !socket.closed(); })) {
        return Held(port, sockets);
      }
      STASIS_ASSIGN(bool some, Drop(port, sockets));
      if (!some) STASIS_TRY(Wait(port, sockets));
    }
    return {};
  }
  FreedPorts freed() const { return freed_; }

 private:
  // Drops closed connections. Returns true if some may have been dropped. Tries each connection
  // only once, because on some kernels the call succeeds without an effect for a connection in
  // FIN_WAIT2 that is still a full socket.
  Result<bool> Drop(const InetPort& port, const std::vector<TcpSocket>& sockets) {
    STASIS_TRY(MayGoOn(port));
    const size_t before = dropped_.size();
    for (const TcpSocket& socket : sockets) {
      if (!why_not_.message.empty()) break;
      if (!socket.only_remembered() || dropped_.contains(socket.cookie())) continue;
      if (Status destroyed = kernel_.Destroy(socket); !destroyed) {
        why_not_ = std::move(destroyed).error();
        break;
      }
      dropped_.insert(socket.cookie());
      if (dropped_.size() % kDropsPerLook == 0) STASIS_TRY(MayGoOn(port));
    }
    return dropped_.size() > before;
  }

  Status MayGoOn(const InetPort& port) const {
    if (cancelled_()) return Fail(Code::kCancelled, "cancelled");
    if (!deadline_.passed()) return {};
    return Fail(Code::kDeadlineExceeded,
                fmt::format("the program's port {} was still held by closed connections at the "
                            "deadline ({} were dropped)",
                            ToString(port), dropped_.size()),
                "Allow more time with --timeout.");
  }

  Status Held(const InetPort& port, const std::vector<TcpSocket>& sockets) const {
    std::set<std::string> names;
    for (const TcpSocket& socket : sockets) {
      if (socket.inode != 0) names.insert(fmt::format("socket:[{}]", socket.inode));
    }
    const std::string holder = HolderOf(names);
    return Fail(Code::kAlreadyExists,
                fmt::format("the program's port {} is in use by {}", ToString(port),
                            holder.empty() ? "a process that is not visible here" : holder),
                "End that process, then restore again. Copies of one program cannot share it: "
                "docs/guides/clones.md says what can be done.");
  }

  Status Wait(const InetPort& port, const std::vector<TcpSocket>& sockets) {
    auto longest =
        std::max_element(sockets.begin(), sockets.end(),
                         [](const auto& a, const auto& b) { return a.expires < b.expires; });
    const milliseconds left = std::max(longest->expires, kOverdue);
    if (!deadline_.never() && milliseconds(deadline_.PollTimeout()) < left) {
      return Late(port, sockets.size(), left);
    }
    if (freed_.waited_for.empty()) freed_.waited_for = ToString(port);
    const Stopwatch watch;
    // Neither the end of a closed connection nor a cancellation by the user causes an event, so
    // wait in small steps until the timer of the connection expires.
    for (const Deadline gone = Deadline::In(left); !gone.passed();) {
      if (cancelled_()) return Fail(Code::kCancelled, "cancelled");
      std::this_thread::sleep_for(std::min(kLook, milliseconds(gone.PollTimeout())));
    }
    freed_.waited_s += watch.Seconds();
    return {};
  }

  Status Late(const InetPort& port, size_t count, milliseconds left) const {
    return Fail(Code::kDeadlineExceeded,
                fmt::format("the program's port {} will be held for another {} s by {} "
                            "(TIME_WAIT), which is past the deadline",
                            ToString(port), (left.count() + 999) / 1000,
                            count == 1 ? "a closed connection"
                                       : fmt::format("{} closed connections", count)),
                why_not_.code == Code::kPermissionDenied
                    ? "Restore again after that time. A restore by root does not wait."
                    : "Restore again after that time.");
  }

  TcpSockets kernel_;
  const Deadline& deadline_;
  const std::function<bool()>& cancelled_;
  Error why_not_;               // the reason why nothing can be dropped
  std::set<uint64_t> dropped_;  // cookies of sockets of this port
  FreedPorts freed_;
};

}  // namespace

bool Overlap(const InetPort& port, int family, const TcpAddress& address) {
  const auto is_mapped = [](const TcpAddress& a) { return a[10] == 0xff && a[11] == 0xff; };
  const bool port_any = port.address == kAny, socket_any = address == kAny;
  if (port.address != address && !port_any && !socket_any) return false;
  const bool port_v6 = port.family == AF_INET6 && !is_mapped(port.address);
  const bool socket_v6 = family == AF_INET6 && !is_mapped(address);
  const bool port_v4 = !port_v6 || (port_any && !port.v6only);
  const bool socket_v4 = !socket_v6 || socket_any;
  return (port_v6 && socket_v6) || (port_v4 && socket_v4);
}

std::string HolderOf(const std::set<std::string>& sockets) {
  auto holders = process::FindHolders(sockets);
  if (!holders || holders->empty()) return "";
  return fmt::format("process {} ({})", holders->front().id.pid.value, holders->front().comm);
}

std::string ToString(const InetPort& port) {
  char text[INET6_ADDRSTRLEN] = "?";
  const bool v4 = port.family == AF_INET;
  ::inet_ntop(port.family, port.address.data() + (v4 ? 12 : 0), text, sizeof text);
  return fmt::format(fmt::runtime(v4 ? "{}:{}" : "[{}]:{}"), text, port.port);
}

Result<FreedPorts> FreeTcpPorts(const std::vector<InetPort>& ports, const Deadline& deadline,
                                const std::function<bool()>& cancelled) {
  const auto first = std::find_if(ports.begin(), ports.end(), IsInUse);
  if (first == ports.end()) return FreedPorts{};
  auto kernel = TcpSockets::Open();
  if (!kernel) return Unseen(*first, kernel.error());
  Freeing freeing(*std::move(kernel), deadline, cancelled);
  for (auto port = first; port != ports.end(); ++port) STASIS_TRY(freeing.Free(*port));
  return freeing.freed();
}

}  // namespace stasis::criu
