#include "api/caller_cgroups.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <charconv>

#include "base/fd.h"
#include "process/control_group.h"

namespace stasis::api {
namespace {

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

constexpr std::string_view kConnection = "fd:";  // gRPC names a connection by its descriptor

tl::unexpected<Error> FailUnknown(const std::string& why) {
  return Fail(Code::kFailedPrecondition,
              "cannot start the program in the caller's control group: " + why,
              "--no-daemon starts it without the daemon");
}

// The call in progress keeps its connection open, so the descriptor cannot have been reused.
// CgroupsOfCaller() checks the peer's user nevertheless.
Result<int> DescriptorOf(const std::string& connection) {
  int fd = -1;
  const char* end = connection.data() + connection.size();
  if (!connection.starts_with(kConnection) ||
      std::from_chars(connection.data() + kConnection.size(), end, fd).ptr != end || fd < 0) {
    return FailUnknown("the connection " + connection + " is not known");
  }
  return fd;
}

}  // namespace

Result<std::vector<std::string>> CgroupsOfCaller(const std::string& connection,
                                                 const Caller& caller) {
  STASIS_ASSIGN(const int fd, DescriptorOf(connection));
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.uid != caller.uid) {
    return FailUnknown("cannot identify the calling process");
  }
  if (peer.pid <= 0) return FailUnknown("the calling process is in another pid namespace");
  int number = -1;
  size = sizeof number;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &number, &size) != 0) {
    number = static_cast<int>(::syscall(SYS_pidfd_open, peer.pid, 0));  // an older kernel
  }
  const UniqueFd pidfd(number);
  auto groups = process::ControlGroupsToJoin({peer.pid});
  // Check after reading the groups that the process is still running. If it had ended earlier, its
  // pid could have been reused, and the groups could be those of another process.
  pollfd ended{pidfd.get(), POLLIN, 0};
  if (!pidfd || ::poll(&ended, 1, 0) != 0) return FailUnknown("the calling process has ended");
  if (!groups) return FailUnknown(groups.error().message);
  return groups;
}

}  // namespace stasis::api
