// stasis-device-helper: the only process of ours that talks to the driver for device control. It
// lives as long as the socket it was started with (descriptor 3, see helper_protocol.h) and creates
// nothing on a GPU.
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
  // What a driver starts must not inherit the socket, or the caller's lock would never come free.
  for (int fd : {wire::kSocketFd, wire::kInheritedFd}) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  ::signal(SIGPIPE, SIG_IGN);
  Serve(wire::kSocketFd, options);
}
