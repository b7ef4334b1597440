#include "api/daemon_server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/server_posix.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>

#include "api/tcp.h"
#include "api/worker_credentials.h"
#include "base/file.h"
#include "base/file_lock.h"
#include "base/log.h"

namespace stasis::api {
namespace {

// The limit for one user, including the user's subordinate ids. No program needs more connections,
// and the limit leaves descriptors for other users.
constexpr size_t kMaxConnectionsOfUser = 512;

}  // namespace

Result<std::unique_ptr<DaemonServer>> DaemonServer::Start(DaemonContext& daemon) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  std::unique_ptr<DaemonServer> server(new DaemonServer(daemon));
  STASIS_TRY(server->Bind());
  STASIS_TRY(server->WarmUp());
  const std::string folder = daemon.socket_path.substr(0, daemon.socket_path.rfind('/'));
  STASIS_ASSIGN(daemon.share, ShareService::Start(daemon.settings, folder, OwnWork(daemon.settings),
                                                  daemon.operations, daemon.metrics));
  if (!daemon.settings.daemon_listen.empty()) STASIS_TRY(ServeTcp(daemon, server->servers_));
  return server;
}

DaemonServer::~DaemonServer() { Stop(); }

Status DaemonServer::Bind() {
  const std::string& path = daemon_.socket_path;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return Fail(Code::kInvalidArgument,
                fmt::format("the socket's path {} is longer than {} bytes", path,
                            sizeof address.sun_path - 1),
                "set daemon.socket in the configuration (STASIS_SOCKET) to a shorter path");
  }
  path.copy(address.sun_path, path.size());
  const bool for_all = ::geteuid() == 0;
  STASIS_TRY(MakeDirs(path.substr(0, path.rfind('/')), for_all ? 0755 : 0700));
  STASIS_ASSIGN(lock_, Open(path + ".lock", O_RDWR | O_CREAT | O_NOFOLLOW, 0600));
  if (!TryLock(lock_.get())) {
    return Fail(Code::kAborted, "a daemon is already running and listening at " + path,
                "`stasis daemon status` shows it");
  }
  // An existing socket belongs to a dead daemon, because this process holds the lock.
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return FailErrno(errno, "remove " + path);
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return FailErrno(errno, "socket");
  const mode_t before = ::umask(for_all ? 0111 : 0177);
  const int bound =
      ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  const int error = errno;
  ::umask(before);
  if (bound != 0) return FailErrno(error, "create the socket " + path);
  if (::listen(socket.get(), 128) != 0) return FailErrno(errno, "listen at " + path);
  listener_ = std::move(socket);
  return {};
}

Status DaemonServer::WarmUp() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return FailErrno(errno, "socketpair");
  }
  UniqueFd ours(ends[0]), theirs(ends[1]);
  STASIS_ASSIGN(Caller self, PeerOf(ours.get()));
  STASIS_TRY(servers_.ServerFor(self));
  return {};
}

Status DaemonServer::CheckConnections(uid_t account) {
  connections_.ForgetClosed();
  const size_t of_user = connections_.CountOf(std::to_string(account));
  if (of_user < kMaxConnectionsOfUser) return {};
  return Fail(Code::kResourceExhausted,
              fmt::format("user {} has {} connections open", account, of_user));
}

bool DaemonServer::Accept() {
  for (;;) {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN) return true;
      log::Write(log::Level::kWarn, "cannot accept a connection",
                 log::ErrorFields(ErrnoError(errno, "accept")));
      return false;
    }
    if (!LeavesFreeDescriptors(socket.get())) {
      log::Write(log::Level::kWarn, "cannot accept a connection: descriptors are nearly used up");
      return false;
    }
    auto caller = PeerOf(socket.get());
    Status may = caller ? CheckConnections(caller->account) : Status(Fail(caller.error()));
    auto grpc_server = may ? servers_.ServerFor(*caller) : Result<grpc::Server*>(Fail(may.error()));
    if (!grpc_server) {
      log::Fields fields = log::ErrorFields(grpc_server.error());
      if (caller) fields.emplace_back("uid", uint64_t{caller->uid});
      log::Write(log::Level::kWarn, "a connection was closed", fields);
      continue;
    }
    connections_.Add(socket.get(), std::to_string(caller->account));
    grpc::AddInsecureChannelFromFd(*grpc_server, socket.release());
  }
}

void DaemonServer::Stop() {
  if (listener_) {
    (void)::unlink(daemon_.socket_path.c_str());
    listener_.Reset();
  }
  // gRPC is not shut down, because that would wait for operations, which continue without the
  // daemon. The connections close when this process ends, so waiting clients notice its end.
}

}  // namespace stasis::api
