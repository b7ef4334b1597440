#include "api/criu_listener.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>

#include "api/methods.h"
#include "api/worker_credentials.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/log.h"

namespace stasis::api {
namespace {

constexpr char kMethod[] = "Hold";
constexpr int kCriuExitMs = 60000;

UniqueFd PidfdOfPeer(int connection) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return UniqueFd();
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, peer.pid, 0)));
}

// Rolls back or finishes the work of a worker that was killed or could not do it itself. Recovery
// starts at once and does not wait for the next command, because there may be none.
void RecoverLost(v1::WorkerRequest work) {
  v1::RecoverRequest request;
  work.set_method("Recover");
  work.set_request(request.SerializeAsString());
  auto end = [](const Result<std::string>& reply, bool) {
    if (reply) return;
    log::Write(log::Level::kError, "recovery has failed", log::ErrorFields(reply.error()));
  };
  auto worker = Worker::Start(
      work, [](const std::string&) {}, end);
  if (!worker) end(Fail(std::move(worker).error()), true);
}

}  // namespace

Result<std::unique_ptr<CriuListener>> CriuListener::Start(DaemonContext& daemon) {
  std::unique_ptr<CriuListener> listener(new CriuListener(daemon));
  STASIS_TRY(listener->Bind());
  return listener;
}

Status CriuListener::Bind() {
  path_ = daemon_.socket_path.substr(0, daemon_.socket_path.rfind('/')) + "/criu.sock";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path_.size() >= sizeof address.sun_path) {
    // Only a path that a user configured can be this long. The daemon works without this socket.
    log::Write(log::Level::kWarn, "CRIU's plugin cannot connect: the socket's path is too long",
               {{"socket", path_}});
    return {};
  }
  path_.copy(address.sun_path, path_.size());
  if (::unlink(path_.c_str()) != 0 && errno != ENOENT) return FailErrno(errno, "remove " + path_);
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return FailErrno(errno, "socket");
  const mode_t before = ::umask(0177);
  const int bound =
      ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  const int error = errno;
  ::umask(before);
  if (bound != 0) return FailErrno(error, "create the socket " + path_);
  if (::listen(socket.get(), 128) != 0) return FailErrno(errno, "listen at " + path_);
  struct stat st;
  if (::lstat(path_.c_str(), &st) != 0) return FailErrno(errno, "stat " + path_);
  bound_ = FileId::Of(st);
  listener_ = std::move(socket);
  return {};
}

Status CriuListener::Serve(UniqueFd connection) {
  STASIS_ASSIGN(const Caller caller, PeerOf(connection.get()));
  // The socket's mode also admits only root and the daemon's own user. CRIU, in which the plugin
  // runs, needs these rights anyway.
  if (!IsPrivileged(caller)) {
    return Fail(Code::kPermissionDenied,
                "CRIU's plugin may use the daemon only as root or the daemon's own user");
  }
  v1::WorkerRequest work;
  work.set_method(kMethod);
  work.set_caller(caller.uid);
  work.set_log_level(daemon_.settings.daemon_log_level);
  *work.mutable_daemon_settings() = SettingsText(daemon_.settings, /*trusted=*/true);
  STASIS_ASSIGN(const std::string id,
                daemon_.operations.Begin(caller, kMethod, /*operation=*/true, ""));
  work.set_operation(id);
  daemon_.usage.Add(caller.uid, work);
  auto on_event = [this, id](const std::string& bytes) {
    v1::OperationEvent event;
    if (!event.ParseFromString(bytes)) return;
    if (event.has_phase_begun()) daemon_.operations.SetPhase(id, event.phase_begun().name());
  };
  // Recovery must wait for CRIU to exit, because CRIU holds the program stopped until then.
  auto criu = std::make_shared<UniqueFd>(PidfdOfPeer(connection.get()));
  auto on_end = [this, id, work, criu](const Result<std::string>& reply, bool lost) {
    daemon_.operations.Finish(id);
    daemon_.operations.End(id);
    if (!lost && (reply || !reply.error().not_undone)) return;
    if (lost) {
      log::Write(log::Level::kError, "a worker that held a program for CRIU was lost",
                 log::ErrorFields(reply.error()));
    }
    pollfd exit{criu->get(), POLLIN, 0};
    (void)TEMP_FAILURE_RETRY(::poll(&exit, criu->valid() ? 1 : 0, kCriuExitMs));
    RecoverLost(work);
  };
  auto worker = Worker::Start(work, on_event, on_end, connection.get());
  if (!worker) {
    daemon_.operations.Finish(id);
    daemon_.operations.End(id);
    return Fail(std::move(worker).error());
  }
  daemon_.operations.SetWorker(id, *worker);
  return {};
}

bool CriuListener::Accept() {
  for (;;) {
    UniqueFd connection(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!connection) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN) return true;
      log::Write(log::Level::kWarn, "cannot accept a connection from CRIU's plugin",
                 log::ErrorFields(ErrnoError(errno, "accept")));
      return false;
    }
    if (Status served = Serve(std::move(connection)); !served) {
      log::Write(log::Level::kWarn, "a connection from CRIU's plugin was closed",
                 log::ErrorFields(served.error()));
    }
  }
}

void CriuListener::Stop() {
  if (!listener_) return;
  // Keeps the socket if another daemon in the same folder has replaced it.
  struct stat st;
  if (::lstat(path_.c_str(), &st) == 0 && FileId::Of(st) == bound_) {
    (void)::unlink(path_.c_str());
  }
  listener_.Reset();
}

}  // namespace stasis::api
