// stasis-device-helper: the only process of Stasis that calls the driver for device control. It
// runs until the socket that it inherited (descriptor 3, see helper_protocol.h) is closed, and
// allocates nothing on a GPU.
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "device/cuda/helper_protocol.h"
#include "device/cuda/helper_server.h"

int main(int argc, char** argv) {
  using namespace stasis::device::cuda;  // NOLINT
  ServerOptions options;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--library") == 0) options.library = argv[i + 1];
    if (std::strcmp(argv[i], "--settle-ms") == 0) {
      options.settle_timeout = std::chrono::milliseconds(std::strtol(argv[i + 1], nullptr, 10));
    }
  }
  int type = 0;
  socklen_t size = sizeof type;
  if (::getsockopt(wire::kSocketFd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 ||
      type != SOCK_SEQPACKET) {
    std::fputs("stasis-device-helper is started by stasis itself.\n", stderr);
    return 2;
  }
  // Child processes of a driver must not inherit these; otherwise the caller's lock would never be
  // released.
  for (int fd : {wire::kSocketFd, wire::kInheritedFd}) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  ::signal(SIGPIPE, SIG_IGN);
  Serve(wire::kSocketFd, options);
}
