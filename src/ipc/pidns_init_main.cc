// stasis-pidns-init: the init process of a task's pid namespace; see pidns_init.h.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/rights.h"
#include "ipc/pidns_init.h"

int main() {
  using namespace stasis;
  HoldRights();
  // The launcher may be killed while one of its commands still has the socket.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::fcntl(ipc::kPidnsSocketFd, F_SETFD, FD_CLOEXEC);
  ::_exit(ipc::ServePidns(ipc::kPidnsSocketFd) ? 0 : 1);
}
