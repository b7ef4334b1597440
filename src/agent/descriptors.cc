#include "agent/descriptors.h"

#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/futex.h"
#include "agent_protocol/packet.h"

namespace stasis::agent {
namespace {

// Returns a mark that is not zero and that a program is unlikely to set.
uint64_t NewMark() {
  static std::atomic<uint64_t> count{0};
  return (uint64_t(NowNs()) + 7919 * (count.fetch_add(1) + 1)) % 900000000 + 100000000;
}

// Returns a number that identifies the file behind the descriptor, or 0 if the descriptor is not
// open.
uint64_t Identity(int fd) {
  struct stat s;
  if (syscall(SYS_fstat, fd, &s) != 0) return 0;
  return (s.st_ino * 0x9E3779B97F4A7C15 ^ s.st_dev) * 0x9E3779B97F4A7C15 ^ s.st_rdev ^ 1ull << 63;
}

}  // namespace

int KeepHigh(int fd) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  // The number is high, but low enough that the kernel's descriptor table stays small.
  int base = int(limit.rlim_cur / 2 < 4096 ? limit.rlim_cur / 2 : 4096);
  int high = fcntl(fd, F_DUPFD_CLOEXEC, base);
  return high >= 0 ? high : fcntl(fd, F_DUPFD_CLOEXEC, 3);
}

uint64_t OpenDescriptors() {
  uint64_t count = 0;
  ForEachDescriptor([&](int, const char*) { ++count; });
  return count;
}

bool Watched::Holds() const {
  return fd >= 0 && mark != 0 && agent_protocol::SocketMark(fd) == mark;
}

bool Watched::Connected() const {
  pollfd item{fd, POLLRDHUP, 0};
  return Holds() && poll(&item, 1, 0) == 0;
}

void Watched::Close() {
  if (Holds()) close(fd);
  fd = -1;
}

void Watched::Take(int socket) {
  fd = KeepHigh(socket);
  if (fd < 0) {
    fd = socket;
  } else {
    close(socket);
  }
  mark = NewMark();
  agent_protocol::SetSocketMark(fd, mark);
}

bool KeptFd::Intact() const { return fd < 0 || Identity(fd) == identity; }

bool KeptFd::Keep(int from) {
  fd = KeepHigh(from);
  if (fd >= 0) identity = Identity(fd);
  return fd >= 0;
}

void KeptFd::Close() {
  if (fd >= 0 && Intact()) close(fd);
  fd = -1;
}

}  // namespace stasis::agent
