#include "dataplane/resident_mover.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/build_id.h"
#include "base/file.h"
#include "base/file_lock.h"
#include "dataplane/mover_protocol.h"
#include "dataplane/packet.h"

namespace stasis::dataplane {
namespace {

constexpr std::string_view kSuffix = ".mover";
constexpr std::string_view kLockSuffix = ".lock";
constexpr std::chrono::seconds kLockLimit{10};

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

// Returns an address that fits sun_path whatever the length of the directory's path. `folder` must
// stay open while it is used. Rejects a directory that other users may enter.
Result<sockaddr_un> AddressOf(const std::string& path, UniqueFd& folder) {
  const size_t slash = path.rfind('/');
  const std::string dir = path.substr(0, slash);
  STASIS_ASSIGN(folder, Open(dir, O_PATH | O_DIRECTORY | O_NOFOLLOW));
  struct stat st;
  if (::fstat(folder.get(), &st) != 0) return FailErrno(errno, "stat " + dir);
  if (st.st_uid != ::geteuid() || (st.st_mode & 077) != 0) {
    return Fail(Code::kPermissionDenied, dir + " is not ours alone");
  }
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string name = fmt::format("/proc/self/fd/{}{}", folder.get(), path.substr(slash));
  if (name.size() >= sizeof address.sun_path) {
    return Fail(Code::kInvalidArgument, "the name of the socket " + path + " is too long");
  }
  std::memcpy(address.sun_path, name.data(), name.size());
  return address;
}

Result<UniqueFd> NewSocket() {
  // Non-blocking: connect() would block forever on a hung mover with a full backlog.
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return FailErrno(errno, "socket");
  return fd;
}

std::string LockOf(const std::string& path) {
  return path.substr(0, path.size() - kSuffix.size()) + std::string(kLockSuffix);
}

Result<UniqueFd> OpenLock(const std::string& path) {
  return Open(LockOf(path), O_RDWR | O_CREAT | O_NOFOLLOW, 0600);
}

}  // namespace

Result<std::string> ResidentPath(const std::string& dir, const device::GpuUuid& gpu,
                                 const std::string& program) {
  STASIS_ASSIGN(std::string build, ReadBuildId(program));
  return fmt::format("{}/{}-{}{}", dir, gpu.value, build.substr(0, 16), kSuffix);
}

Result<ResidentClient> ConnectResident(const std::string& path) {
  UniqueFd folder;
  STASIS_ASSIGN(sockaddr_un address, AddressOf(path, folder));
  ResidentClient client;
  STASIS_ASSIGN(client.socket, NewSocket());
  const int socket = client.socket.get();
  if (::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    const bool nobody = errno == ENOENT || errno == ECONNREFUSED;
    return Fail(nobody ? Code::kNotFound : Code::kAborted, "connect to " + path);
  }
  auto refuse = [&](const char* why) { return Fail(Code::kAborted, path + " " + why); };
  ucred peer = {};
  socklen_t size = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.pid <= 0 ||
      peer.uid != ::geteuid()) {
    return refuse("is not a mover of ours");
  }
  int pidfd = -1;
  size = sizeof pidfd;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &size) != 0) {
    // Older kernel. The pid cannot be reused while the peer's end of the socket is open.
    pidfd = static_cast<int>(::syscall(SYS_pidfd_open, peer.pid, 0));
  }
  client.pidfd.Reset(pidfd);
  client.pid = peer.pid;
  pollfd ended{socket, POLLIN, 0};
  if (!client.pidfd || ::poll(&ended, 1, 0) != 0) return refuse("has no time for us");
  return client;
}

Result<ResidentName> ClaimResidentName(const std::string& path) {
  const std::string dir = path.substr(0, path.rfind('/'));
  STASIS_TRY(MakeDirs(dir, 0700));
  ResidentName name;
  STASIS_ASSIGN(name.lock, OpenLock(path));
  STASIS_TRY(Annotate(LockUntil(name.lock.get(), Deadline::In(kLockLimit)), LockOf(path)));
  auto there = ConnectResident(path);
  if (there || there.error().code != Code::kNotFound) {
    return Fail(Code::kAborted, "somebody listens at " + path);
  }
  // The stale name of a killed mover.
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return FailErrno(errno, "remove " + path);
  UniqueFd folder;
  STASIS_ASSIGN(sockaddr_un address, AddressOf(path, folder));
  STASIS_ASSIGN(name.socket, NewSocket());
  if (::bind(name.socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    return FailErrno(errno, "make the socket " + path);
  }
  return name;
}

void RemoveResidentName(const std::string& path) {
  auto lock = OpenLock(path);
  if (lock && TryLock(lock->get())) ::unlink(path.c_str());
}

Result<bool> SendAway(const ResidentClient& client, const Deadline& deadline) {
  wire::Request request;
  request.id = 1;
  request.op = wire::Op::kEnd;
  request.flags = wire::kFlagLeave;
  if (!SendPacket(client.socket.get(), &request, sizeof request, {}, MSG_DONTWAIT)) return false;
  // A busy mover closes the socket. Wait for the exit of one that leaves, since its memory is free
  // only then.
  wire::Reply reply;
  pollfd answered{client.socket.get(), POLLIN, 0};
  const Deadline soon = Deadline::Sooner(deadline, Deadline::In(kResidentAnswer));
  if (TEMP_FAILURE_RETRY(::poll(&answered, 1, soon.PollTimeout())) <= 0) {
    ::syscall(SYS_pidfd_send_signal, client.pidfd.get(), SIGKILL, nullptr, 0);
  } else if (auto packet = ReceivePacket(client.socket.get(), &reply, sizeof reply);
             !packet || packet->size == 0) {
    return false;
  }
  pollfd ended{client.pidfd.get(), POLLIN, 0};
  if (TEMP_FAILURE_RETRY(::poll(&ended, 1, deadline.PollTimeout())) <= 0) {
    return Fail(Code::kDeadlineExceeded,
                fmt::format("the mover (process {}) did not end in time", client.pid));
  }
  return true;
}

Result<int> SendAwayResidents(const std::string& dir, const std::optional<device::GpuUuid>& gpu,
                              const Deadline& deadline) {
  auto names = ListDir(dir);
  if (!names) {
    if (names.error().code == Code::kNotFound) return 0;
    return Fail(std::move(names).error());
  }
  int count = 0;
  for (const std::string& name : *names) {
    if (!name.ends_with(kSuffix) || (gpu && !name.starts_with(gpu->value + "-"))) continue;
    auto client = ConnectResident(dir + "/" + name);
    if (!client) continue;
    STASIS_ASSIGN(const bool left, SendAway(*client, deadline));
    count += left ? 1 : 0;
  }
  return count;
}

}  // namespace stasis::dataplane
