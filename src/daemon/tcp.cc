#include "daemon/tcp.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>
#include <vector>

#include "base/file.h"
#include "base/listen.h"
#include "base/log.h"
#include "daemon/connections.h"

namespace stasis::daemon {
namespace {

using Acceptor = grpc::experimental::ExternalConnectionAcceptor;

constexpr size_t kMaxConnections = 1024;
constexpr size_t kMaxConnectionsOfAddress = 512;
// That may still have no certificate.
constexpr size_t kMaxYoung = 128;
constexpr size_t kMaxYoungOfAddress = 32;
constexpr std::chrono::milliseconds kYoung{kHandshakeMs};

constexpr int kMaxCertificateBytes = 1 << 20;
constexpr int kPauseMs = 500;  // when descriptors are used up
constexpr std::chrono::seconds kBetweenWords{10};

// A file that only its owner, root or us, can have written.
Result<std::string> ReadSecret(const char* what, const std::string& path, bool secret) {
  if (path.empty()) {
    return Fail(Code::kInvalidArgument, Domain::kUsage, 0,
                fmt::format("daemon.listen is set, and {} is not", what),
                "over TCP both sides show a certificate: see docs/daemon.md");
  }
  STASIS_ASSIGN(UniqueFd fd, Open(path, O_RDONLY));
  struct stat st {};
  if (::fstat(fd.get(), &st) != 0) return FailErrno(errno, path);
  if (!S_ISREG(st.st_mode) || st.st_size > kMaxCertificateBytes) {
    return Fail(Code::kInvalidArgument, fmt::format("{} {} is no PEM file", what, path));
  }
  if (secret && (st.st_mode & 077) != 0) {
    return Fail(
        Code::kPermissionDenied,
        fmt::format("{} {} can be read by others (mode {:o})", what, path, st.st_mode & 0777),
        "chmod 600 " + path);
  }
  return ReadFile(path);
}

Result<Caller> CertifiedCaller(const grpc::CallbackServerContext& context) {
  auto auth = context.auth_context();
  if (auth == nullptr || !auth->IsPeerAuthenticated()) {
    return Fail(Code::kPermissionDenied, "the caller has shown no certificate");
  }
  auto names = auth->FindPropertyValues(GRPC_X509_CN_PROPERTY_NAME);
  if (names.empty() || names[0].empty()) {
    return Fail(Code::kPermissionDenied, "the caller's certificate has no common name");
  }
  STASIS_ASSIGN(Caller caller, UserNamed(std::string(names[0].data(), names[0].size())));
  STASIS_TRY(CheckServed(caller));
  return caller;
}

// Who can have many addresses has them in one network: of IPv6 it is the network that counts.
std::string Whose(const sockaddr_storage& from) {
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

class Gate {
 public:
  Gate(std::vector<UniqueFd> listeners, std::unique_ptr<Acceptor> acceptor)
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
  static void Pause() { ::poll(nullptr, 0, kPauseMs); }

  // False: nobody can be let in for the moment.
  bool Accept(int listener) {
    sockaddr_storage from{};
    socklen_t size = sizeof from;
    UniqueFd socket(::accept4(listener, reinterpret_cast<sockaddr*>(&from), &size,
                              SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) return errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
    if (!LeavesRoom(socket.get())) {
      Say("descriptors are nearly used up", "");
      return false;
    }
    const std::string whose = Whose(from);
    connections_.ForgetClosed();
    if (const char* why = WhyNot(whose); why != nullptr) {
      Say(why, whose);
      return true;
    }
    connections_.Add(socket.get(), whose);
    Acceptor::NewConnectionParameters connection;
    connection.listener_fd = listener;
    connection.fd = socket.release();
    acceptor_->HandleNewConnection(&connection);
    return true;
  }

  const char* WhyNot(const std::string& whose) const {
    if (connections_.count() >= kMaxConnections) return "there are too many";
    if (connections_.CountOf(whose) >= kMaxConnectionsOfAddress ||
        connections_.CountYoungerOf(whose, kYoung) >= kMaxYoungOfAddress) {
      return "that address has too many";
    }
    if (connections_.CountYounger(kYoung) >= kMaxYoung) return "too many have come at once";
    return nullptr;
  }

  // Not once for each: whoever floods the door shall not flood the log.
  void Say(const char* why, const std::string& whose) {
    ++refused_;
    const auto now = Connections::Clock::now();
    if (said_ != Connections::Clock::time_point() && now - said_ < kBetweenWords) return;
    said_ = now;
    log::Write(log::Level::kWarn, "connections over TCP were closed",
               {{"error", std::string(why)}, {"address", whose}, {"connections", refused_}});
    refused_ = 0;
  }

  const std::vector<UniqueFd> listeners_;
  const std::unique_ptr<Acceptor> acceptor_;
  Connections connections_;
  Connections::Clock::time_point said_;
  uint64_t refused_ = 0;
};

}  // namespace

Status ServeTcp(House& house, Doors& doors) {
  const config::Settings& settings = house.settings;
  grpc::SslServerCredentialsOptions tls(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  STASIS_ASSIGN(tls.pem_root_certs,
                ReadSecret("daemon.tls_client_ca", settings.daemon_tls_client_ca, false));
  STASIS_ASSIGN(std::string key, ReadSecret("daemon.tls_key", settings.daemon_tls_key, true));
  STASIS_ASSIGN(std::string chain, ReadSecret("daemon.tls_cert", settings.daemon_tls_cert, false));
  tls.pem_key_cert_pairs.push_back({key, chain});
  STASIS_ASSIGN(TcpListener listener, ListenTcp("daemon.listen", settings.daemon_listen, 128));
  grpc::ServerBuilder builder;
  auto acceptor = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      grpc::SslServerCredentials(tls));
  if (!doors.Add(builder, CertifiedCaller)) {
    return Fail(Code::kUnavailable, "cannot serve daemon.listen with its certificates",
                "are they whole, and does the key belong to its certificate?");
  }
  house.listen = std::move(listener.address);
  auto gate = std::make_shared<Gate>(std::move(listener.sockets), std::move(acceptor));
  std::thread([gate] { gate->Run(); }).detach();
  return {};
}

}  // namespace stasis::daemon
