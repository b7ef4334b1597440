#include "api/tcp.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <vector>

#include "api/connections.h"
#include "api/usage_error.h"
#include "base/file.h"
#include "base/listen.h"
#include "base/log.h"
#include "base/thread.h"

namespace stasis::api {
namespace {

using GrpcAcceptor = grpc::experimental::ExternalConnectionAcceptor;

constexpr size_t kMaxConnections = 1024;
constexpr size_t kMaxConnectionsOfAddress = 512;
// Limits for connections that may still be in their handshake.
constexpr size_t kMaxHandshakes = 128;
constexpr size_t kMaxHandshakesOfAddress = 32;
constexpr std::chrono::milliseconds kHandshake{kHandshakeMs};

constexpr int kMaxCertificateBytes = 1 << 20;
constexpr int kAcceptPauseMs = 500;  // if no descriptor is free
constexpr std::chrono::seconds kLogInterval{10};

Result<Caller> CertifiedCaller(const grpc::CallbackServerContext& context) {
  auto auth = context.auth_context();
  if (auth == nullptr || !auth->IsPeerAuthenticated()) {
    return Fail(Code::kPermissionDenied, "the caller has no certificate");
  }
  auto names = auth->FindPropertyValues(GRPC_X509_CN_PROPERTY_NAME);
  if (names.empty() || names[0].empty()) {
    return Fail(Code::kPermissionDenied, "the caller's certificate has no common name");
  }
  STASIS_ASSIGN(Caller caller, UserNamed(std::string(names[0].data(), names[0].size())));
  STASIS_TRY(CheckServed(caller));
  return caller;
}

// Returns the key by which connections are counted: an IPv4 address, or the /64 network of an IPv6
// address, because one host can have any number of addresses in its network.
std::string AddressKey(const sockaddr_storage& from) {
  char text[INET6_ADDRSTRLEN] = "";
  if (from.ss_family == AF_INET) {
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(from).sin_addr, text, sizeof text);
    return text;
  }
  in6_addr address = reinterpret_cast<const sockaddr_in6&>(from).sin6_addr;
  if (!IN6_IS_ADDR_V4MAPPED(&address)) std::fill(address.s6_addr + 8, address.s6_addr + 16, 0);
  ::inet_ntop(AF_INET6, &address, text, sizeof text);
  return text;
}

class Acceptor {
 public:
  Acceptor(std::vector<UniqueFd> listeners, std::unique_ptr<GrpcAcceptor> acceptor)
      : listeners_(std::move(listeners)), acceptor_(std::move(acceptor)) {}

  [[noreturn]] void Run() {
    std::vector<pollfd> waits;
    for (const UniqueFd& listener : listeners_) waits.push_back({listener.get(), POLLIN, 0});
    for (;;) {
      if (::poll(waits.data(), waits.size(), -1) < 0 && errno != EINTR) Pause();
      for (const pollfd& wait : waits) {
        if (wait.revents != 0 && !Accept(wait.fd)) Pause();
      }
    }
  }

 private:
  static void Pause() { ::poll(nullptr, 0, kAcceptPauseMs); }

  // Accepts the next connection. Returns false if no descriptor is free.
  bool Accept(int listener) {
    sockaddr_storage from{};
    socklen_t size = sizeof from;
    UniqueFd socket(::accept4(listener, reinterpret_cast<sockaddr*>(&from), &size,
                              SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) return errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
    if (!LeavesFreeDescriptors(socket.get())) {
      LogRejected("descriptors are nearly used up", "");
      return false;
    }
    const std::string address = AddressKey(from);
    connections_.ForgetClosed();
    if (const char* why = RejectionReason(address); why != nullptr) {
      LogRejected(why, address);
      return true;
    }
    connections_.Add(socket.get(), address);
    GrpcAcceptor::NewConnectionParameters connection;
    connection.listener_fd = listener;
    connection.fd = socket.release();
    acceptor_->HandleNewConnection(&connection);
    return true;
  }

  const char* RejectionReason(const std::string& address) const {
    if (connections_.count() >= kMaxConnections) return "there are too many connections";
    if (connections_.CountOf(address) >= kMaxConnectionsOfAddress ||
        connections_.CountYoungerOf(address, kHandshake) >= kMaxHandshakesOfAddress) {
      return "there are too many connections from that address";
    }
    if (connections_.CountYounger(kHandshake) >= kMaxHandshakes)
      return "there are too many new connections at once";
    return nullptr;
  }

  // Logs at most one line each kLogInterval, because a flood of connections must not flood the log.
  void LogRejected(const char* why, const std::string& address) {
    ++rejected_;
    const auto now = Connections::Clock::now();
    if (logged_ != Connections::Clock::time_point() && now - logged_ < kLogInterval) return;
    logged_ = now;
    log::Write(log::Level::kWarn, "connections over TCP were closed",
               {{"error", std::string(why)}, {"address", address}, {"connections", rejected_}});
    rejected_ = 0;
  }

  const std::vector<UniqueFd> listeners_;
  const std::unique_ptr<GrpcAcceptor> acceptor_;
  Connections connections_;
  Connections::Clock::time_point logged_;
  uint64_t rejected_ = 0;
};

}  // namespace

Result<std::string> ReadTlsFile(const char* what, const std::string& path, bool secret) {
  if (path.empty()) {
    return FailUsage(fmt::format("daemon.listen is set, but {} is not", what),
                     "TCP needs certificates on both sides; see docs/daemon.md");
  }
  STASIS_ASSIGN(UniqueFd fd, Open(path, O_RDONLY));
  struct stat st {};
  if (::fstat(fd.get(), &st) != 0) return FailErrno(errno, path);
  if (!S_ISREG(st.st_mode) || st.st_size > kMaxCertificateBytes) {
    return Fail(Code::kInvalidArgument, fmt::format("{} {} is not a PEM file", what, path));
  }
  if (secret && st.st_uid != ::geteuid() && st.st_uid != 0) {
    return Fail(Code::kPermissionDenied,
                fmt::format("{} {} belongs to user {}, who can replace it", what, path, st.st_uid),
                fmt::format("chown {} {}", ::geteuid(), path));
  }
  if (secret && (st.st_mode & 077) != 0) {
    return Fail(
        Code::kPermissionDenied,
        fmt::format("{} {} can be read by others (mode {:o})", what, path, st.st_mode & 0777),
        "chmod 600 " + path);
  }
  // Reads the descriptor that was checked, because the path may name another file by now.
  std::string text(static_cast<size_t>(st.st_size), '\0');
  STASIS_TRY(PreadAll(fd.get(), text.data(), text.size(), 0));
  return text;
}

Status ServeTcp(DaemonContext& daemon, ServerPool& servers) {
  const config::Settings& settings = daemon.settings;
  grpc::SslServerCredentialsOptions tls(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  STASIS_ASSIGN(tls.pem_root_certs,
                ReadTlsFile("daemon.tls_client_ca", settings.daemon_tls_client_ca, false));
  STASIS_ASSIGN(std::string key, ReadTlsFile("daemon.tls_key", settings.daemon_tls_key, true));
  STASIS_ASSIGN(std::string chain, ReadTlsFile("daemon.tls_cert", settings.daemon_tls_cert, false));
  tls.pem_key_cert_pairs.push_back({key, chain});
  STASIS_ASSIGN(TcpListener listener, ListenTcp("daemon.listen", settings.daemon_listen, 128));
  grpc::ServerBuilder builder;
  auto acceptor = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      grpc::SslServerCredentials(tls));
  if (!servers.AddShared(builder, CertifiedCaller)) {
    return Fail(Code::kUnavailable,
                "cannot listen at the address of daemon.listen with the configured certificates",
                "check that the files are complete and that the key belongs to the certificate");
  }
  daemon.listen_address = std::move(listener.address);
  auto loop = std::make_shared<Acceptor>(std::move(listener.sockets), std::move(acceptor));
  STASIS_ASSIGN(Thread thread, Thread::Start([loop] { loop->Run(); }));
  std::move(thread).Detach();
  return {};
}

}  // namespace stasis::api
