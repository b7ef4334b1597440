// stasis-mover: copies GPU memory of other programs to and from an arena, for one GPU. It runs
// until the socket that it inherited (descriptor 3, see mover_protocol.h) closes; a resident one
// also listens on another socket (descriptor 5).
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/descriptor_table.h"
#include "dataplane/mover_protocol.h"
#include "dataplane/mover_server.h"

int main(int argc, char** argv) {
  using namespace stasis::dataplane;  // NOLINT
  MoverServerOptions options;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--gpu") == 0) options.gpu.value = argv[i + 1];
    if (std::strcmp(argv[i], "--library") == 0) options.library = argv[i + 1];
    if (std::strcmp(argv[i], "--listen-as") == 0) options.listen_path = argv[i + 1];
    if (std::strcmp(argv[i], "--idle-ms") == 0) {
      options.idle_timeout = std::chrono::milliseconds(std::strtol(argv[i + 1], nullptr, 10));
    }
  }
  int type = 0;
  socklen_t size = sizeof type;
  if (::getsockopt(wire::kSocketFd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 ||
      type != SOCK_SEQPACKET) {
    std::fputs("stasis-mover is started by stasis itself.\n", stderr);
    return 2;
  }
  // Child processes of a driver must not inherit the sockets; otherwise this process would not
  // notice the end of its client.
  for (int fd : {wire::kSocketFd, wire::kInheritedFd, wire::kListenFd}) {
    ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
  ::signal(SIGPIPE, SIG_IGN);
  stasis::WidenDescriptorTable();
  ServeMover(wire::kSocketFd, options);
}
