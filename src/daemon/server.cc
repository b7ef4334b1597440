#include "daemon/server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/server_posix.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/file.h"
#include "base/file_lock.h"
#include "base/log.h"

namespace stasis::daemon {
namespace {

// Different rights that users have come with since the daemon began.
constexpr size_t kMaxDoors = 1024;
// Of one user at a time: more than any program has use for, and not enough to take all descriptors
// from the others.
constexpr size_t kMaxConnectionsOfUser = 512;
// Of one door.
constexpr int kMaxStreams = 256;  // of a connection
constexpr int kMaxThreads = 16;
constexpr size_t kMaxBytes = 256u << 20;
constexpr int kHandshakeMs = 10000;
constexpr int kMaxCertificateBytes = 1 << 20;

// Null: it could not be started.
std::unique_ptr<grpc::Server> StartServer(grpc::ServerBuilder& builder, grpc::Service& service) {
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxHeaderBytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreams);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMs);
  // Reflection has a thread for each stream; a caller cannot have more of them, nor of our memory,
  // than this.
  grpc::ResourceQuota quota;
  quota.SetMaxThreads(kMaxThreads);
  quota.Resize(kMaxBytes);
  builder.SetResourceQuota(quota);
  builder.SetMaxReceiveMessageSize(4 << 20);
  builder.RegisterService(&service);
  auto server = builder.BuildAndStart();
  if (server == nullptr) return nullptr;
  if (auto* health = server->GetHealthCheckService(); health != nullptr) {
    health->SetServingStatus(v1::Stasis::service_full_name(), true);
  }
  return server;
}

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

// Which socket it is; 0: none.
ino_t SocketBehind(int fd) {
  struct stat st {};
  return ::fstat(fd, &st) == 0 && S_ISSOCK(st.st_mode) ? st.st_ino : 0;
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
  return UserNamed(std::string(names[0].data(), names[0].size()));
}

// A quarter of the descriptors is for workers and for gRPC, which ends the process when it gets
// none. The kernel gives the lowest one that is free.
bool LeavesRoom(int fd) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return true;
  return static_cast<rlim_t>(fd) < limit.rlim_cur - limit.rlim_cur / 4;
}

}  // namespace

Result<std::unique_ptr<Server>> Server::Start(House& house) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  std::unique_ptr<Server> server(new Server(house));
  STASIS_TRY(server->Bind());
  STASIS_TRY(server->WarmUp());
  if (!house.settings.daemon_listen.empty()) STASIS_TRY(server->ListenTcp());
  return server;
}

Server::~Server() { Stop(); }

Status Server::Bind() {
  const std::string& path = house_.socket;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return Fail(Code::kInvalidArgument,
                fmt::format("the socket's path {} is longer than {} bytes", path,
                            sizeof address.sun_path - 1),
                "daemon.socket of the configuration (STASIS_SOCKET) names a shorter one");
  }
  path.copy(address.sun_path, path.size());
  const bool for_all = ::geteuid() == 0;
  STASIS_TRY(MakeDirs(path.substr(0, path.rfind('/')), for_all ? 0755 : 0700));
  STASIS_ASSIGN(lock_, Open(path + ".lock", O_RDWR | O_CREAT | O_NOFOLLOW, 0600));
  if (!TryLock(lock_.get())) {
    return Fail(Code::kAborted, "a daemon runs already: it has " + path,
                "`stasis daemon status` tells of it");
  }
  // Whoever has left one there is not there any more: we have the lock.
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return FailErrno(errno, "remove " + path);
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return FailErrno(errno, "socket");
  const mode_t before = ::umask(for_all ? 0111 : 0177);
  const int bound =
      ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  const int error = errno;
  ::umask(before);
  if (bound != 0) return FailErrno(error, "make the socket " + path);
  if (::listen(socket.get(), 128) != 0) return FailErrno(errno, "listen at " + path);
  listener_ = std::move(socket);
  return {};
}

Status Server::WarmUp() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return FailErrno(errno, "socketpair");
  }
  UniqueFd ours(ends[0]), theirs(ends[1]);
  STASIS_ASSIGN(Caller self, PeerOf(ours.get()));
  STASIS_TRY(DoorOf(self));
  return {};
}

Status Server::ListenTcp() {
  const config::Settings& settings = house_.settings;
  grpc::SslServerCredentialsOptions tls(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  STASIS_ASSIGN(tls.pem_root_certs,
                ReadSecret("daemon.tls_client_ca", settings.daemon_tls_client_ca, false));
  STASIS_ASSIGN(std::string key, ReadSecret("daemon.tls_key", settings.daemon_tls_key, true));
  STASIS_ASSIGN(std::string chain, ReadSecret("daemon.tls_cert", settings.daemon_tls_cert, false));
  tls.pem_key_cert_pairs.push_back({key, chain});
  tcp_.service =
      MakeService(house_, [](const grpc::CallbackServerContext& context) -> Result<Caller> {
        STASIS_ASSIGN(Caller caller, CertifiedCaller(context));
        STASIS_TRY(CheckServed(caller));
        return caller;
      });
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(settings.daemon_listen, grpc::SslServerCredentials(tls), &port);
  tcp_.server = StartServer(builder, *tcp_.service);
  if (tcp_.server == nullptr || port == 0) {
    return Fail(Code::kUnavailable, "cannot listen at daemon.listen " + settings.daemon_listen,
                "is the port taken, and are the certificates whole?");
  }
  // A port of 0 was chosen for us.
  house_.listen = fmt::format(
      "{}:{}", settings.daemon_listen.substr(0, settings.daemon_listen.rfind(':')), port);
  return {};
}

Result<Server::Door*> Server::DoorOf(const Caller& caller) {
  if (auto found = doors_.find(caller); found != doors_.end()) return &found->second;
  if (doors_.size() >= kMaxDoors) {
    return Fail(Code::kResourceExhausted, "too many different users have come");
  }
  Door door;
  door.service =
      MakeService(house_, [caller](const grpc::CallbackServerContext&) -> Result<Caller> {
        STASIS_TRY(CheckServed(caller));
        return caller;
      });
  grpc::ServerBuilder builder;
  door.server = StartServer(builder, *door.service);
  if (door.server == nullptr) return Fail(Code::kInternal, "cannot start a server");
  return &doors_.emplace(caller, std::move(door)).first->second;
}

Status Server::CheckConnections(uid_t uid) {
  std::erase_if(connections_, [](const auto& connection) {
    return SocketBehind(connection.first) != connection.second.socket;
  });
  const auto of_user =
      std::count_if(connections_.begin(), connections_.end(),
                    [&](const auto& connection) { return connection.second.uid == uid; });
  if (static_cast<size_t>(of_user) < kMaxConnectionsOfUser) return {};
  return Fail(Code::kResourceExhausted,
              fmt::format("user {} has {} connections open", uid, of_user));
}

bool Server::Accept() {
  for (;;) {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN) return true;
      log::Write(log::Level::kWarn, "cannot accept a connection",
                 log::ErrorFields(ErrnoError(errno, "accept")));
      return false;
    }
    if (!LeavesRoom(socket.get())) {
      log::Write(log::Level::kWarn, "cannot accept a connection: descriptors are nearly used up");
      return false;
    }
    auto caller = PeerOf(socket.get());
    Status may = caller ? CheckConnections(caller->uid) : Status(Fail(caller.error()));
    auto door = may ? DoorOf(*caller) : Result<Door*>(Fail(may.error()));
    if (!door) {
      log::Fields fields = log::ErrorFields(door.error());
      if (caller) fields.emplace_back("uid", uint64_t{caller->uid});
      log::Write(log::Level::kWarn, "a connection was closed", fields);
      continue;
    }
    connections_[socket.get()] = {SocketBehind(socket.get()), caller->uid};
    grpc::AddInsecureChannelFromFd((*door)->server.get(), socket.release());
  }
}

void Server::Stop() {
  if (listener_) {
    (void)::unlink(house_.socket.c_str());
    listener_.Reset();
  }
  // gRPC's own shutdown would wait for operations, which go on without us: the end of this process
  // closes all connections, and who waits for an answer is told that we have gone.
}

}  // namespace stasis::daemon
