#include "agent/ipc_link.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "agent/futex.h"
#include "agent/gate.h"

namespace stasis::agent {
namespace {

constexpr int kBacklog = 128;
constexpr int kConnectSeconds = 10;  // time limit for a connection attempt

Mutex g_mutex;
agent_protocol::Uuid g_name;
bool g_named = false;

bool MakeName() {
  if (g_named) return true;
  int before = errno;
  g_named = getrandom(g_name.bytes, sizeof(g_name.bytes), 0) == ssize_t(sizeof(g_name.bytes));
  errno = before;
  return g_named;
}

// Reads the name of this process's pid namespace, such as "pid:[4026531836]"; empty if /proc cannot
// be read. The name is not cached, because a restore may have placed the process in another
// namespace.
void ReadPidNamespace(char (&out)[32]) {
  const int before = errno;
  const ssize_t n = readlink("/proc/self/ns/pid", out, sizeof(out) - 1);
  out[n > 0 ? n : 0] = '\0';
  errno = before;
}

// An address is "\0stasis-ipc-", 32 hexadecimal digits, "-" and the pid namespace.
socklen_t AddressOf(const agent_protocol::Uuid& name, sockaddr_un* out) {
  constexpr char kPrefix[] = "\0stasis-ipc-";
  constexpr char kDigits[] = "0123456789abcdef";
  memset(out, 0, sizeof(*out));
  out->sun_family = AF_UNIX;
  memcpy(out->sun_path, kPrefix, sizeof(kPrefix) - 1);
  char* at = out->sun_path + sizeof(kPrefix) - 1;
  for (uint8_t byte : name.bytes) {
    *at++ = kDigits[byte >> 4];
    *at++ = kDigits[byte & 15];
  }
  *at++ = '-';
  char pid_namespace[32];
  ReadPidNamespace(pid_namespace);
  const size_t length = strlen(pid_namespace);
  memcpy(at, pid_namespace, length);
  return socklen_t(at + length - reinterpret_cast<char*>(out));
}

int Socket() { return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0); }

int CloseAndFail(int fd) {
  int error = errno;
  close(fd);
  errno = error;
  return -1;
}

}  // namespace

const agent_protocol::Uuid* OwnIpcName() {
  Lock lock(g_mutex);
  return MakeName() ? &g_name : nullptr;
}

void RenewIpcName() {
  Lock lock(g_mutex);
  g_named = false;
  MakeName();
}

bool HasIpcName() {
  Lock lock(g_mutex);
  return g_named;
}

void ResetIpcNameAfterFork() {
  g_mutex.ResetAfterFork();
  g_named = false;
}

int ListenAt(const agent_protocol::Uuid& name) {
  sockaddr_un address;
  socklen_t size = AddressOf(name, &address);
  int fd = Socket();
  if (fd < 0) return -1;
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(fd, kBacklog) != 0) {
    return CloseAndFail(fd);
  }
  return fd;
}

int AdmitIpc(int listener, int32_t* pid) {
  int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) return -1;
  ucred peer{};
  socklen_t size = sizeof(peer);
  // Like the driver, shares memory only with processes of the same user. A peer in another pid
  // namespace has pid 0 here; the handle was not meant for it.
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.pid <= 0 ||
      (peer.uid != geteuid() && peer.uid != 0)) {
    return CloseAndFail(fd);
  }
  *pid = peer.pid;
  return fd;
}

int ConnectIpc(const IpcPlace& place, const char** why) {
  sockaddr_un address;
  socklen_t size = AddressOf(place.name, &address);
  int fd = Socket();
  if (fd < 0) {
    *why = "this process has no free file descriptor";
    return -1;
  }
  timeval patience{kConnectSeconds, 0};
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), size) != 0) {
    *why = errno == EAGAIN
               ? "too many connections to it are pending"
               : "it has ended, is suspended, or is in another network namespace (a container)";
    return CloseAndFail(fd);
  }
  ucred peer{};
  size = sizeof(peer);
  // The handle may come from any process, so check that the listening process has the pid in the
  // handle and belongs to the same user.
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.pid != place.pid ||
      (peer.uid != geteuid() && geteuid() != 0)) {
    *why = "a different process, or a process of another user, is listening at its address";
    errno = EPERM;
    return CloseAndFail(fd);
  }
  return fd;
}

void WakeIpc(const agent_protocol::Uuid& name) {
  sockaddr_un address;
  socklen_t size = AddressOf(name, &address);
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return;
  // If the connection queue of the listener is full, the thread is awake already.
  (void)!connect(fd, reinterpret_cast<sockaddr*>(&address), size);
  close(fd);
}

bool IsAway(const IpcPlace& place) {
  char path[64];
  snprintf(path, sizeof(path), "/proc/%d/task", int(place.pid));
  DIR* tasks = opendir(path);
  if (tasks == nullptr) return false;
  bool away = false;
  while (const dirent* task = away ? nullptr : readdir(tasks)) {
    if (task->d_name[0] == '.') continue;
    char name[sizeof(kIpcAwayName)] = {};
    snprintf(path, sizeof(path), "/proc/%d/task/%.20s/comm", int(place.pid), task->d_name);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) continue;
    const ssize_t n = read(fd, name, sizeof(name) - 1);
    close(fd);
    away = n == ssize_t(sizeof(kIpcAwayName) - 1) && memcmp(name, kIpcAwayName, size_t(n)) == 0;
  }
  closedir(tasks);
  return away;
}

bool AwaitOwner(const IpcPlace& owner, bool* again) {
  constexpr useconds_t kLookAgainUs = 20 * 1000;  // no event reports that a thread was renamed
  if (!IsAway(owner)) {
    const bool once = *again;
    *again = false;
    return once;
  }
  dprintf(2,
          "stasis: process %d is waiting for process %d, which is suspended and shares GPU memory "
          "with it (CUDA IPC)\n",
          int(getpid()), int(owner.pid));
  gate::Outside outside;
  while (IsAway(owner)) usleep(kLookAgainUs);
  *again = true;
  return true;
}

void SayAway(const Watched& link) {
  agent_protocol::IpcRequest request{};
  if (!link.Holds()) return;
  agent_protocol::Send(link.fd, &request, agent_protocol::Type::kIpcAway, sizeof(request), nullptr,
                       0, 0);
}

bool AskIpc(int socket, agent_protocol::Type type, agent_protocol::IpcRequest request,
            int timeout_ms, agent_protocol::IpcAnswer* answer, int* fd, const char** why) {
  *fd = -1;
  // The packet is on the heap, because some programs have threads with small stacks.
  auto* packet = static_cast<agent_protocol::Packet*>(malloc(sizeof(agent_protocol::Packet)));
  if (packet == nullptr) {
    *why = "this process is out of memory";
    return false;
  }
  int fds[agent_protocol::kMaxBatch];
  uint32_t count = 0;
  agent_protocol::Io io =
      agent_protocol::Send(socket, &request, type, sizeof(request), nullptr, 0, timeout_ms);
  if (io == agent_protocol::Io::kOk) {
    io = agent_protocol::Receive(socket, packet, fds, &count, timeout_ms);
  }
  bool fine =
      io == agent_protocol::Io::kOk && packet->header.type == agent_protocol::Type::kIpcAnswer;
  if (fine) {
    *answer = packet->ipc_answer;
    if (count == 1) *fd = fds[0];
  } else {
    agent_protocol::CloseAll(fds, count);
    *why = io == agent_protocol::Io::kTimeout ? "it did not answer in time"
           : io == agent_protocol::Io::kEnd   ? "it has ended or was suspended meanwhile"
                                              : "its answer is not valid";
  }
  free(packet);
  return fine;
}

}  // namespace stasis::agent
