#include "criu/sock_diag.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

namespace stasis::criu {

Result<UniqueFd> OpenSockDiag() {
  UniqueFd fd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  if (!fd) return FailErrno(errno, "sock_diag socket");
  return fd;
}

Result<int> AskSockDiag(int fd, const void* request, size_t size,
                        const std::function<void(const nlmsghdr*)>& take) {
  if (::send(fd, request, size, 0) < 0) return FailErrno(errno, "sock_diag request");
  std::vector<char> buffer(64u << 10);
  while (true) {
    const ssize_t got = TEMP_FAILURE_RETRY(::recv(fd, buffer.data(), buffer.size(), 0));
    if (got < 0) return FailErrno(errno, "sock_diag answer");
    auto left = static_cast<unsigned>(got);
    for (auto* header = reinterpret_cast<nlmsghdr*>(buffer.data()); NLMSG_OK(header, left);
         header = NLMSG_NEXT(header, left)) {
      if (header->nlmsg_type == NLMSG_DONE) return 0;
      if (header->nlmsg_type == NLMSG_ERROR) {
        return -static_cast<nlmsgerr*>(NLMSG_DATA(header))->error;
      }
      take(header);
    }
  }
}

}  // namespace stasis::criu
