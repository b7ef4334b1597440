#include "checkpoint_client.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/uio.h>

namespace softgpu {
namespace {

// Returns the last number of a line of /proc/PID/status (for NSpid the number in the innermost
// namespace), or -1.
int StatusNumber(const char* path, const char* key) {
  Fd file(open(path, O_RDONLY | O_CLOEXEC));
  char text[4096] = {};
  if (!file.valid() || read(file.get(), text, sizeof(text) - 1) <= 0) return -1;
  char* line = strstr(text, key);
  if (line == nullptr) return -1;
  char* end = strchr(line + 1, '\n');
  if (end != nullptr) *end = 0;
  char* number = strrchr(line, '\t');
  return number != nullptr ? atoi(number + 1) : -1;
}

}  // namespace

CUresult FindTarget(int pid, uint64_t header_address, Target* target) {
  if (pid <= 0) return CUDA_ERROR_INVALID_VALUE;
  char path[64];
  snprintf(path, sizeof(path), "/proc/%d/status", pid);
  target->pid = StatusNumber(path, "\nTgid:");  // a thread id identifies its process
  if (target->pid <= 0) return CUDA_ERROR_INVALID_VALUE;
  iovec local{target->bytes(), sizeof(ProcessHeader)};
  iovec remote{reinterpret_cast<void*>(header_address), sizeof(ProcessHeader)};
  if (process_vm_readv(target->pid, &local, 1, &remote, 1, 0) != ssize_t(sizeof(ProcessHeader))) {
    return errno == EPERM ? CUDA_ERROR_NOT_PERMITTED : CUDA_ERROR_NOT_INITIALIZED;
  }
  snprintf(path, sizeof(path), "/proc/%d/status", target->pid);
  if (target->header.magic.load() != kHeaderMagic ||
      target->header.pid != StatusNumber(path, "\nNSpid:")) {
    return CUDA_ERROR_NOT_INITIALIZED;  // also for a child after fork
  }
  return target->header.version == kHeaderVersion ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

namespace {

Fd OpenEnd(const Target& target, int fd, int flags) {
  char path[64];
  snprintf(path, sizeof(path), "/proc/%d/fd/%d", target.pid, fd);
  return Fd(open(path, flags | O_CLOEXEC));
}

// Admits one client at a time. The lock is released when this process ends, which the target
// notices.
CUresult TakeTurn(const Fd& request, uint32_t timeout_ms) {
  uint64_t deadline = NowNs() + uint64_t(timeout_ms) * 1'000'000;
  while (flock(request.get(), timeout_ms != 0 ? LOCK_EX | LOCK_NB : LOCK_EX) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return CUDA_ERROR_OPERATING_SYSTEM;
    if (NowNs() >= deadline) return CUDA_ERROR_NOT_READY;
    usleep(1000);
  }
  return CUDA_SUCCESS;
}

// A stopped target cannot enforce the timeout itself.
constexpr uint32_t kGraceMs = 2000;

CUresult AwaitReply(const Target& target, const Fd& reply_end, const CheckpointRequest& request) {
  Fd process(int(syscall(SYS_pidfd_open, target.pid, 0)));
  int timeout_ms = request.timeout_ms != 0 ? int(request.timeout_ms + kGraceMs) : -1;
  for (;;) {
    CheckpointReply reply;
    ssize_t got = read(reply_end.get(), &reply, sizeof(reply));
    if (got == ssize_t(sizeof(reply))) {
      if (reply.nonce == request.nonce) return CUresult(reply.result);
      continue;  // a late reply to a client that has died
    }
    if (got == 0 || (errno != EAGAIN && errno != EINTR)) return CUDA_ERROR_OPERATING_SYSTEM;
    pollfd ends[2] = {{reply_end.get(), POLLIN, 0}, {process.get(), POLLIN, 0}};
    if (poll(ends, 2, timeout_ms) == 0) return CUDA_ERROR_NOT_READY;
    if (ends[1].revents != 0 && ends[0].revents == 0)
      return CUDA_ERROR_OPERATING_SYSTEM;  // the target died
  }
}

// Removes requests of clients that died before the target read them.
void DropStaleRequests(const Target& target) {
  Fd requests = OpenEnd(target, target.header.request_read, O_RDONLY | O_NONBLOCK);
  CheckpointRequest stale;
  while (requests.valid() &&
         read(requests.get(), &stale, sizeof(stale)) == ssize_t(sizeof(stale))) {
  }
}

}  // namespace

CUresult AskTarget(const Target& target, CheckpointRequest request) {
  Fd request_end = OpenEnd(target, target.header.request_write, O_WRONLY);
  Fd reply_end = OpenEnd(target, target.header.reply_read, O_RDONLY | O_NONBLOCK);
  if (!request_end.valid() || !reply_end.valid()) {
    return errno == EACCES || errno == EPERM ? CUDA_ERROR_NOT_PERMITTED
                                             : CUDA_ERROR_OPERATING_SYSTEM;
  }
  if (CUresult r = TakeTurn(request_end, request.timeout_ms); r != CUDA_SUCCESS) return r;
  DropStaleRequests(target);
  if (getrandom(&request.nonce, sizeof(request.nonce), 0) < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  if (write(request_end.get(), &request, sizeof(request)) != ssize_t(sizeof(request))) {
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  return AwaitReply(target, reply_end, request);
}

int ThreadIdOf(const Target& target) {
  char path[64];
  snprintf(path, sizeof(path), "/proc/%d/task", target.pid);
  DIR* tasks = opendir(path);
  if (tasks == nullptr) return -1;
  int tid = 0;
  while (dirent* task = readdir(tasks)) {
    char status[64];
    snprintf(status, sizeof(status), "/proc/%d/task/%.16s/status", target.pid, task->d_name);
    if (task->d_name[0] == '.' ||
        StatusNumber(status, "\nNSpid:") != target.header.restore_thread) {
      continue;
    }
    tid = atoi(task->d_name);
  }
  closedir(tasks);
  return tid;
}

}  // namespace softgpu
