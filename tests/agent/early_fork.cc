// Tests two forks under the agent: one while another thread starts the agent, and one of a child
// that was sent a file of the GPU. Prints EXIT-SUCCESS at the end.
//
// The program has its own getenv, which the agent calls when it starts. In the thread that makes
// the first driver call it returns only after the main thread has forked.

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>

#include "abi/cuda/driver_functions.h"
#include "agent_protocol/protocol.h"

using namespace stasis::cuda;  // NOLINT

#define EXPECT(condition)                                          \
  do {                                                             \
    if (!(condition)) {                                            \
      printf("line %d: check failed: %s\n", __LINE__, #condition); \
      fflush(stdout);                                              \
      _exit(1);                                                    \
    }                                                              \
  } while (0)

namespace {

enum Step { kBegin, kStarting, kForked };
std::atomic<int> step{kBegin};
thread_local bool starts_the_agent = false;

void ExpectToEndWell(pid_t child) {
  int status = 0;
  EXPECT(waitpid(child, &status, 0) == child);
  if (WIFSIGNALED(status)) printf("the child died of signal %d\n", WTERMSIG(status));
  EXPECT(status == 0);
}

bool HasAControlSocket() {
  auto* header =
      static_cast<stasis::agent_protocol::AgentHeader*>(dlsym(RTLD_DEFAULT, "stasis_agent_header"));
  return header != nullptr && header->control_fd >= 0 && header->pid == getpid();
}

// The child gets its own agent, although the parent's was still starting.
void ForkWhileTheAgentStarts() {
  std::thread first([] {
    starts_the_agent = true;
    EXPECT(cuInit(0) == CUDA_SUCCESS);
    starts_the_agent = false;
  });
  while (step.load() != kStarting) usleep(1000);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    EXPECT(cuInit(0) == CUDA_SUCCESS);
    EXPECT(HasAControlSocket());
    // A fork by the child leaves no lock of the agent held.
    const pid_t grandchild = fork();
    if (grandchild == 0) _exit(0);
    ExpectToEndWell(grandchild);
    EXPECT(cuMemFree_v2(4096) != CUDA_SUCCESS);
    _exit(0);
  }
  step.store(kForked);
  ExpectToEndWell(child);
  first.join();
  EXPECT(HasAControlSocket());
}

std::string TargetOf(int fd) {
  char target[64] = {};
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  return readlink(link.c_str(), target, sizeof(target) - 1) > 0 ? target : "";
}

int DeviceFolder() {
  for (int fd = 0; fd < 4096; ++fd) {
    if (TargetOf(fd) == "/softgpu/0") return fd;
  }
  return -1;
}

union Control {
  cmsghdr align;
  char bytes[CMSG_SPACE(sizeof(int))];
};

msghdr Message(iovec* part, Control* control) {
  msghdr message{};
  message.msg_iov = part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(*control);
  return message;
}

void SendFile(int socket, int fd) {
  char byte = 0;
  iovec part{&byte, 1};
  Control control{};
  msghdr message = Message(&part, &control);
  cmsghdr* c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(c), &fd, sizeof(fd));
  EXPECT(sendmsg(socket, &message, 0) == 1);
}

int ReceiveFile(int socket) {
  char byte = 0;
  iovec part{&byte, 1};
  Control control{};
  msghdr message = Message(&part, &control);
  EXPECT(recvmsg(socket, &message, 0) == 1);
  const cmsghdr* c = CMSG_FIRSTHDR(&message);
  EXPECT(c != nullptr && c->cmsg_type == SCM_RIGHTS);
  int fd = -1;
  memcpy(&fd, CMSG_DATA(c), sizeof(fd));
  return fd;
}

// If a child's agent has not started, the child has not used CUDA, and its GPU file may come from
// NVML. Its own children may therefore continue to use the file.
void ForkOfAChildWithAFileOfTheGpu() {
  const int folder = DeviceFolder();
  EXPECT(folder >= 0);
  int ends[2];
  EXPECT(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    EXPECT(TargetOf(folder) == "/dev/null");
    const int file = ReceiveFile(ends[1]);
    EXPECT(TargetOf(file) == "/softgpu/0");
    const pid_t grandchild = fork();
    if (grandchild == 0) {
      EXPECT(TargetOf(file) == "/softgpu/0");
      _exit(0);
    }
    ExpectToEndWell(grandchild);
    _exit(0);
  }
  SendFile(ends[0], folder);
  ExpectToEndWell(child);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) char* getenv(const char* name) {
  if (starts_the_agent && strcmp(name, "STASIS_FORK_KEEPS_GPU_FILES") == 0) {
    step.store(kStarting);
    while (step.load() != kForked) usleep(1000);
  }
  const size_t length = strlen(name);
  for (char** at = environ; at != nullptr && *at != nullptr; ++at) {
    if (strncmp(*at, name, length) == 0 && (*at)[length] == '=') return *at + length + 1;
  }
  return nullptr;
}

int main(int argc, char** argv) {
  alarm(60);
  if (argc < 2 || strcmp(argv[1], "start") == 0) ForkWhileTheAgentStarts();
  EXPECT(cuInit(0) == CUDA_SUCCESS);
  if (argc < 2 || strcmp(argv[1], "file") == 0) ForkOfAChildWithAFileOfTheGpu();
  puts("EXIT-SUCCESS");
  return 0;
}
