#include "ipc/resident.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "base/build_id.h"
#include "base/file.h"
#include "base/file_lock.h"
#include "ipc/socket.h"
#include "process/inheritance.h"

namespace stasis::ipc {
namespace {

constexpr std::string_view kSuffix = ".helper";
constexpr std::string_view kLockSuffix = ".lock";
constexpr std::chrono::seconds kLockLimit{10};

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

// `folder` must stay open while the address is used.
struct Place {
  UniqueFd folder;
  sockaddr_un address;
};
// Rejects a directory that other users may enter.
Result<Place> PlaceOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string dir = path.substr(0, slash);
  Place place;
  STASIS_ASSIGN(place.folder, Open(dir, O_PATH | O_DIRECTORY | O_NOFOLLOW));
  struct stat st;
  if (::fstat(place.folder.get(), &st) != 0) return FailErrno(errno, "stat " + dir);
  if (st.st_uid != ::geteuid() || (st.st_mode & 077) != 0) {
    return Fail(Code::kPermissionDenied,
                dir + " belongs to another user, or other users can enter it");
  }
  STASIS_ASSIGN(place.address, AddressIn(place.folder.get(), path.substr(slash + 1)));
  return place;
}

Result<UniqueFd> NewSocket() {
  // Non-blocking: connect() would block forever on a hung helper with a full backlog.
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return FailErrno(errno, "socket");
  return fd;
}

std::string LockOf(const std::string& path) {
  return path.substr(0, path.size() - kSuffix.size()) + std::string(kLockSuffix);
}

Result<UniqueFd> OpenLock(const std::string& path, int flags) {
  return Open(LockOf(path), O_RDWR | O_NOFOLLOW | flags, 0600);
}

}  // namespace

Result<std::string> ResidentPath(const std::string& dir, const std::string& name,
                                 const std::string& program) {
  STASIS_ASSIGN(std::string build, ReadBuildId(program));
  return fmt::format("{}/{}-{}{}", dir, name, build.substr(0, 16), kSuffix);
}

Result<HelperProcess> ConnectResident(const std::string& path) {
  STASIS_ASSIGN(Place place, PlaceOf(path));
  STASIS_ASSIGN(UniqueFd socket, NewSocket());
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&place.address), sizeof place.address) !=
      0) {
    const bool no_server = errno == ENOENT || errno == ECONNREFUSED;
    return Fail(no_server ? Code::kNotFound : Code::kAborted, "connect to " + path);
  }
  auto refuse = [&](const char* why) { return Fail(Code::kAborted, path + " " + why); };
  ucred peer = {};
  socklen_t size = sizeof peer;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.pid <= 0 ||
      peer.uid != ::geteuid()) {
    return refuse("belongs to another user or pid namespace");
  }
  int number = -1;
  size = sizeof number;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERPIDFD, &number, &size) != 0) {
    // An older kernel has no SO_PEERPIDFD. The pid cannot be reused while the peer's end of the
    // socket is open.
    number = static_cast<int>(::syscall(SYS_pidfd_open, peer.pid, 0));
  }
  UniqueFd pidfd(number);
  if (!pidfd || AwaitReadable(socket.get(), Deadline::In(std::chrono::milliseconds(0)))) {
    return refuse("serves another client");
  }
  return HelperProcess(std::move(socket), std::move(pidfd), peer.pid);
}

Result<ResidentName> ClaimResidentName(const std::string& path) {
  STASIS_TRY(MakeDirs(path.substr(0, path.rfind('/')), 0700));
  // Check the folder before the lock: in a folder that other users can enter, one of them could
  // hold the lock forever.
  STASIS_ASSIGN(Place place, PlaceOf(path));
  ResidentName name;
  STASIS_ASSIGN(name.lock, OpenLock(path, O_CREAT));
  STASIS_TRY(Annotate(LockUntil(name.lock.get(), Deadline::In(kLockLimit)), LockOf(path)));
  auto there = ConnectResident(path);
  if (there || there.error().code != Code::kNotFound) {
    return Fail(Code::kAborted, "another process is listening at " + path);
  }
  // Remove the stale name of a killed helper.
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return FailErrno(errno, "remove " + path);
  STASIS_ASSIGN(name.socket, NewSocket());
  if (::bind(name.socket.get(), reinterpret_cast<sockaddr*>(&place.address),
             sizeof place.address) != 0) {
    return FailErrno(errno, "make the socket " + path);
  }
  return name;
}

void RemoveResidentName(const std::string& path) {
  // Creates no file: the folder may be about to be removed.
  auto lock = OpenLock(path, 0);
  if (lock && TryLock(lock->get())) ::unlink(path.c_str());
}

Result<std::optional<HelperProcess>> OpenResident(const HelperCommand& command,
                                                  const ResidentOptions& options,
                                                  const Greet& greet, const Deadline& deadline) {
  // A resident helper may exit during the attempt, hang, or need to be replaced.
  for (int tries = 0; tries < 3; ++tries) {
    std::optional<ResidentName> name;
    Deadline answer = deadline;
    const Deadline patience = Deadline::In(kResidentAnswer);
    auto helper = ConnectResident(options.path);
    const bool found = helper.has_value();
    if (found && !process::InheritanceDifference({helper->pid()}).empty()) {
      // The helper inherited its limits and control group from the command that started it, and
      // they differ from those of this process; or the helper is exiting and cannot be compared.
      STASIS_TRY(Dismiss(*helper, options.leave_request, deadline));
      continue;
    }
    if (found) {
      answer = Deadline::Sooner(deadline, patience);
    } else if (helper.error().code == Code::kNotFound) {
      auto claimed = ClaimResidentName(options.path);
      if (!claimed && claimed.error().code == Code::kDeadlineExceeded) break;
      if (!claimed) continue;
      name = std::move(*claimed);
      helper = HelperProcess::Start(command, name->socket.get());
      if (!helper) return Fail(std::move(helper.error()));
    } else {
      continue;
    }
    auto greeting = greet(*helper, answer);
    if (greeting && *greeting == Greeting::kServes) return std::move(*helper);
    helper->Disconnect();
    if (!greeting) return Fail(std::move(greeting.error()));
    // Do not wait for a helper that serves another client or has just exited.
    if (*greeting == Greeting::kBusy && found) continue;
    if (*greeting == Greeting::kBusy) {
      // The helper died at its start. The caller then starts a private one, which can report the
      // reason.
      helper->Kill();
      (void)helper->WaitEnd(Deadline::In(options.settle_timeout));
      break;
    }
    if (*greeting == Greeting::kSilent && found && !patience.passed()) {
      // The deadline came before the time limit for an answer, so the helper may only be busy: do
      // not kill it.
      return Fail(Code::kDeadlineExceeded, "it did not answer in time");
    }
    helper->Kill();
    const bool ended = helper->WaitEnd(Deadline::In(options.settle_timeout)).has_value();
    if (*greeting == Greeting::kSilent && !(found && ended && !deadline.passed())) {
      return Fail(
          Code::kDeadlineExceeded,
          fmt::format("it did not answer in time, and {}",
                      ended ? "was killed"
                            : fmt::format("(process {}) hangs in the kernel", helper->pid())));
    }
    if (*greeting == Greeting::kBroken && !(found && ended)) break;
  }
  return std::nullopt;
}

Result<bool> Dismiss(HelperProcess& helper, const std::string& leave_request,
                     const Deadline& deadline) {
  if (!SendPacket(helper.socket(), leave_request.data(), leave_request.size(), {}, MSG_DONTWAIT)) {
    return false;
  }
  // A busy helper closes the socket. A helper that exits must be waited for, because its memory is
  // freed only then.
  char byte;
  const Deadline patience = Deadline::In(kResidentAnswer);
  auto late = [&] {
    return Fail(Code::kDeadlineExceeded,
                fmt::format("the helper (process {}) did not end in time", helper.pid()));
  };
  if (AwaitReadable(helper.socket(), Deadline::Sooner(deadline, patience))) {
    auto packet = ReceivePacket(helper.socket(), &byte, 1);
    if (!packet || packet->size == 0) return false;
    // The helper answered, so it has no other client. A helper of another version may not support
    // the request.
    if (helper.WaitEnd(Deadline::Sooner(deadline, Deadline::In(kResidentAnswer)))) return true;
  } else if (!patience.passed()) {
    return late();
  }
  helper.Kill();
  if (!helper.WaitEnd(deadline)) return late();
  return true;
}

Result<int> DismissAll(const std::string& dir, const std::string& prefix,
                       const std::string& leave_request, const Deadline& deadline) {
  auto names = ListDir(dir);
  if (!names) {
    if (names.error().code == Code::kNotFound) return 0;
    return Fail(std::move(names).error());
  }
  int count = 0;
  Status all;
  for (const std::string& name : *names) {
    if (!name.starts_with(prefix) || !name.ends_with(kSuffix)) continue;
    auto helper = ConnectResident(dir + "/" + name);
    if (!helper) continue;
    auto left = Dismiss(*helper, leave_request, deadline);
    if (left && *left) ++count;
    if (!left && all) all = Fail(std::move(left).error());
  }
  STASIS_TRY(std::move(all));
  return count;
}

}  // namespace stasis::ipc
