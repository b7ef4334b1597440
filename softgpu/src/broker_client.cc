#include "broker_client.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <algorithm>

#include "fd_passing.h"

// glibc's clone under a name that ThreadSanitizer does not treat as a fork.
// NOLINTNEXTLINE(bugprone-reserved-identifier,readability-identifier-naming)
extern "C" int __clone(int (*fn)(void*), void* stack, int flags, void* argument, ...);

namespace softgpu {
namespace {

constexpr char kDefaultMemory[] = "8G";
constexpr char kDefaultContext[] = "16M";

// The broker is in libexec/ beside lib/softgpu/, or beside bin/ if the driver is linked in.
void FindProgram(char* out, size_t size) {
  if (const char* set = getenv("SOFTGPU_BROKER")) {
    snprintf(out, size, "%s", set);
    return;
  }
  Dl_info self;
  char folder[PATH_MAX];
  if (dladdr(reinterpret_cast<void*>(&FindProgram), &self) == 0 ||
      realpath(self.dli_fname, folder) == nullptr) {
    if (realpath("/proc/self/exe", folder) == nullptr) return;
  }
  *strrchr(folder, '/') = 0;
  for (const char* way : {"/../../libexec", "/../libexec", ""}) {
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%.3000s%s/softgpu-broker", folder, way);
    char real[PATH_MAX];
    if (realpath(path, real) == nullptr || access(real, X_OK) != 0) continue;
    snprintf(out, size, "%.511s", real);
    return;
  }
}

struct SpawnArguments {
  char* argv[7];
  char** environment;
  char* stack_end;  // of the second child
};

// SAFETY: SpawnChild and SpawnParent run in a child that shares this process's memory, and never
// return. Sanitizers must not instrument them, and they must not use the C library's exec and exit,
// which a sanitizer would attribute to the parent.
__attribute__((no_sanitize("address", "thread", "undefined"))) int SpawnChild(void* raw) {
  auto* arguments = static_cast<SpawnArguments*>(raw);
  syscall(SYS_execve, arguments->argv[0], arguments->argv, arguments->environment);
  syscall(SYS_exit_group, 127);
  return 0;
}

// The intermediate process: starts the broker and exits. If the broker were a direct child, it
// would send SIGCHLD to the program when it exits, because exec resets a child's exit signal to
// SIGCHLD.
__attribute__((no_sanitize("address", "thread", "undefined"))) int SpawnParent(void* raw) {
  auto* arguments = static_cast<SpawnArguments*>(raw);
  __clone(SpawnChild, arguments->stack_end, CLONE_VM | CLONE_VFORK, raw);
  syscall(SYS_exit_group, 0);
  return 0;
}

}  // namespace

struct BrokerClient::Answer {
  BrokerReply reply;
  int fds[kMaxPassedFds];
  int count = 0;
};

uint64_t ParseSize(const char* text) {
  char* end = nullptr;
  uint64_t value = strtoull(text, &end, 10);
  if (end == text) return 0;
  const char* units = "KMGT";
  if (const char* unit = *end != 0 ? strchr(units, *end) : nullptr) {
    value <<= 10 * (unit - units + 1);
    ++end;
  }
  if (strcmp(end, "iB") == 0 || strcmp(end, "B") == 0) return value;
  return *end == 0 ? value : 0;
}

void BrokerClient::Configure(bool hip) {
  hip_ = hip;
  auto env = [](const char* name, const char* otherwise) {
    const char* set = getenv(name);
    return set != nullptr && *set != 0 ? set : otherwise;
  };
  char standard[64];
  snprintf(standard, sizeof(standard), "/tmp/softgpu-%u", geteuid());
  const char* chosen = env("SOFTGPU_DIR", standard);
  chosen_ = chosen != standard;
  snprintf(directory_, sizeof(directory_), "%s", chosen);
  int devices = std::clamp(atoi(env("SOFTGPU_DEVICES", "1")), 1, kMaxDevices);
  uint64_t memory = ParseSize(env("SOFTGPU_MEMORY", kDefaultMemory));
  uint64_t context = ParseSize(env("SOFTGPU_CONTEXT_MEMORY", kDefaultContext));
  if (memory == 0) memory = ParseSize(kDefaultMemory);
  if (context == 0) context = ParseSize(kDefaultContext);
  snprintf(device_count_, sizeof(device_count_), "%d", devices);
  snprintf(memory_bytes_, sizeof(memory_bytes_), "%llu",
           static_cast<unsigned long long>(RoundUp(memory, kPage)));
  snprintf(context_bytes_, sizeof(context_bytes_), "%llu",
           static_cast<unsigned long long>(RoundUp(context, kPage)));
  snprintf(first_device_, sizeof(first_device_), "SOFTGPU_FIRST=%d",
           atoi(env("SOFTGPU_FIRST", "0")));
  FindProgram(program_, sizeof(program_));
}

// The broker holds all GPU memory, and any user who can create a socket in the directory could pose
// as the broker.
bool BrokerClient::TrustFolder() {
  Fd folder(open(directory_, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder.valid() && errno == ENOENT) return true;
  struct stat s;
  if (!folder.valid() || fstat(folder.get(), &s) != 0) {
    dprintf(2, "softgpu: cannot use %s as the folder of the GPUs: %s\n", directory_,
            strerror(errno));
    return false;
  }
  const uid_t user = geteuid();
  // Root may use the GPUs of any user.
  const bool owner_ok = s.st_uid == user || s.st_uid == 0 || (user == 0 && chosen_);
  // The default directory must not be writable by its group either. A directory that the user chose
  // may be, because many users have a private group that may write to their directories.
  const mode_t writers = chosen_ ? S_IWOTH : S_IWGRP | S_IWOTH;
  if (!owner_ok || (s.st_mode & writers) != 0) {
    dprintf(2,
            "softgpu: %s belongs to user %u and has mode %04o, so another user may control it. "
            "Remove it, or set SOFTGPU_DIR to a folder that belongs to you.\n",
            directory_, s.st_uid, s.st_mode & 07777);
    return false;
  }
  folder_owner_ = s.st_uid;
  return true;
}

bool BrokerClient::Dial() {
  sockaddr_un address{AF_UNIX, {}};
  const char kName[] = "/broker.sock";
  if (strlen(directory_) + sizeof(kName) > sizeof(address.sun_path)) return false;
  strcpy(address.sun_path, directory_);
  strcat(address.sun_path, kName);
  socket_.Reset(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    socket_.Reset();
    return false;
  }
  // The credentials of the listening process, from the kernel.
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (getsockopt(socket_.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 ||
      (peer.uid != folder_owner_ && peer.uid != geteuid() && peer.uid != 0)) {
    socket_.Reset();
    return false;
  }
  Answer answer;
  if (!Call(BrokerOp::kHello, {hip_ ? kHipFolders : kCudaFolders, 0}, -1, &answer) ||
      answer.reply.error != 0 || answer.count != int(answer.reply.config.device_count)) {
    for (int i = 0; i < answer.count; ++i) close(answer.fds[i]);
    socket_.Reset();
    return false;
  }
  config_ = answer.reply.config;
  socket_.MoveHigh();
  for (int i = 0; i < answer.count; ++i) {
    devices_[i].Reset(answer.fds[i]);
    devices_[i].MoveHigh();
  }
  return true;
}

// Starts a broker. Returns true if the broker has reported that it is ready.
bool BrokerClient::Spawn() {
  if (mkdir(directory_, 0700) != 0 && errno != EEXIST) {
    dprintf(2, "softgpu: cannot create the folder %s: %s\n", directory_, strerror(errno));
    return false;
  }
  if (!TrustFolder()) return false;
  int ends[2];
  if (pipe(ends) != 0) return false;  // the broker inherits the second one, so not close-on-exec
  Fd hear(ends[0]), say(ends[1]);
  fcntl(hear.get(), F_SETFD, FD_CLOEXEC);
  char number[16];
  snprintf(number, sizeof(number), "%d", say.get());
  static char path[] = "PATH=/usr/bin:/bin";
  char* environment[] = {path, first_device_, nullptr};
  SpawnArguments arguments{
      {program_, directory_, number, device_count_, memory_bytes_, context_bytes_, nullptr},
      environment};
  constexpr size_t kStack = 64 * 1024;
  void* stacks =
      mmap(nullptr, 2 * kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (stacks == MAP_FAILED) return false;
  char* stack_end = static_cast<char*>(stacks) + kStack;
  arguments.stack_end = stack_end + kStack;
  // SAFETY: the child shares this process's memory until its own child calls exec, and this thread
  // waits for that. All signals are blocked, so that no signal handler of the program runs in the
  // child.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int child = __clone(SpawnParent, stack_end, CLONE_VM | CLONE_VFORK, &arguments);
  if (child > 0) waitpid(child, nullptr, __WCLONE);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  munmap(stacks, 2 * kStack);
  say.Reset();
  char line[256];
  ssize_t got;
  do {
    got = read(hear.get(), line, sizeof(line) - 1);
  } while (got < 0 && errno == EINTR);
  if (got > 0 && line[0] == 'R') return true;
  line[got > 0 ? got : 0] = 0;
  if (got > 0) {
    dprintf(2, "softgpu: cannot start the broker for %s: %s\n", directory_, line + 1);
  } else if (program_[0] != 0) {
    dprintf(2, "softgpu: cannot start the broker for %s: %s could not be run\n", directory_,
            program_);
  } else {
    dprintf(2,
            "softgpu: cannot start the broker for %s: softgpu-broker was not found; "
            "set SOFTGPU_BROKER to its path\n",
            directory_);
  }
  return false;
}

CUresult BrokerClient::Connect() {
  if (connected()) return CUDA_SUCCESS;
  // If the broker cannot be reached, it may be exiting at this moment, so start another one and try
  // again.
  for (int attempt = 0; attempt < 50; ++attempt) {
    if (!TrustFolder()) return CUDA_ERROR_SYSTEM_NOT_READY;
    if (Dial()) return CUDA_SUCCESS;
    if (!Spawn()) return CUDA_ERROR_SYSTEM_NOT_READY;
  }
  dprintf(2,
          "softgpu: cannot connect to the broker in %s: it does not answer, has another version, "
          "or belongs to another user\n",
          directory_);
  return CUDA_ERROR_SYSTEM_NOT_READY;
}

void BrokerClient::Disconnect() {
  if (!connected()) return;
  Answer answer;
  Call(BrokerOp::kDropAll, {}, -1, &answer);
  for (Fd& device : devices_) device.Reset();
  socket_.Reset();
}

bool BrokerClient::IsLost() const {
  pollfd end{socket_.get(), POLLRDHUP, 0};
  return connected() && poll(&end, 1, 0) > 0;
}

bool BrokerClient::Call(BrokerOp op, const KeepTicket& ticket, int fd_out, Answer* answer) {
  BrokerRequest request;
  request.op = op;
  request.key = ticket.key;
  request.token = ticket.token;
  while (busy_.exchange(1) != 0) FutexWait(&busy_, 1, 100);
  bool ok = SendWithFds(socket_.get(), &request, sizeof(request), &fd_out, fd_out >= 0 ? 1 : 0) &&
            ReceiveWithFds(socket_.get(), &answer->reply, sizeof(answer->reply), answer->fds,
                           &answer->count);
  busy_.store(0);
  FutexWake(&busy_);
  return ok;
}

CUresult BrokerClient::Keep(int fd, KeepTicket* ticket) {
  Answer answer;
  if (!Call(BrokerOp::kKeep, {}, fd, &answer) || answer.reply.error != 0)
    return CUDA_ERROR_SYSTEM_NOT_READY;
  *ticket = {answer.reply.key, answer.reply.token};
  return CUDA_SUCCESS;
}

CUresult BrokerClient::Fetch(const KeepTicket& ticket, Fd* file) {
  Answer answer;
  if (!Call(BrokerOp::kFetch, ticket, -1, &answer)) return CUDA_ERROR_SYSTEM_NOT_READY;
  if (answer.reply.error != 0 || answer.count != 1) return CUDA_ERROR_INVALID_VALUE;
  file->Reset(answer.fds[0]);
  return CUDA_SUCCESS;
}

void BrokerClient::Drop(const KeepTicket& ticket) {
  if (ticket.key == 0 || !connected()) return;
  Answer answer;
  Call(BrokerOp::kDrop, ticket, -1, &answer);
}

}  // namespace softgpu
