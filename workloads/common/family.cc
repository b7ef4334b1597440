#include "common/family.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "common/arithmetic.h"

namespace workloads {
namespace {

constexpr uint64_t kReady = 1;

void WriteWord(int fd, uint64_t word) {
  if (write(fd, &word, sizeof word) != sizeof word) {
    Fail("cannot write to a pipe: %s", strerror(errno));
  }
}

// Returns false at end-of-file.
bool ReadWord(int fd, uint64_t* word) {
  ssize_t length;
  do {
    length = read(fd, word, sizeof *word);
  } while (length < 0 && errno == EINTR);
  if (length != 0 && length != sizeof *word) {
    Fail("read %zd of %zu bytes from a pipe", length, sizeof *word);
  }
  return length != 0;
}

}  // namespace

// Requests arrive on stdin and answers go to stdout; the first answer means "ready".
void LiveAsChild(const Options& options, Workload& life) {
  // The parent ignores SIGPIPE, which the child would inherit. With the default action, a child
  // that outlives its parent for a moment ends silently when it answers.
  signal(SIGPIPE, SIG_DFL);
  // Text output must not mix with the answers to the parent.
  const int answer = dup(STDOUT_FILENO);
  dup2(STDERR_FILENO, STDOUT_FILENO);
  life.SetUp(options);
  WriteWord(answer, kReady);
  uint64_t word = 0;
  while (ReadWord(STDIN_FILENO, &word)) WriteWord(answer, life.Round(word));
  if (options.sabotage) life.Sabotage();
  life.Verify();
  life.TearDown();
  _exit(0);
}

void Family::SetUp(const Options& options) {
  // The parent must report a dead child and not be killed by SIGPIPE.
  signal(SIGPIPE, SIG_IGN);
  children_.resize(options.children);
  for (int c = 0; c < options.children; ++c) Start(c, options);
  for (Child& child : children_) {
    uint64_t word = 0;
    if (!ReadWord(child.answer, &word) || word != kReady) Fail("a child did not start");
  }
}

uint64_t Family::Ask(uint64_t word) {
  for (Child& child : children_) WriteWord(child.ask, word);
  uint64_t sum = 0;
  for (Child& child : children_) {
    uint64_t checksum = 0;
    if (!ReadWord(child.answer, &checksum)) Fail("child %d has ended", child.pid);
    sum = Mix64(sum) + checksum;
  }
  return sum;
}

void Family::Verify() {
  for (Child& child : children_) {
    close(child.ask);
    int status = 0;
    if (waitpid(child.pid, &status, 0) != child.pid) Fail("waitpid: %s", strerror(errno));
    if (status != 0) Fail("child %d found a difference in its memory, or died", child.pid);
  }
}

void Family::Start(int c, const Options& options) {
  int ask[2], answer[2];
  if (pipe2(ask, O_CLOEXEC) != 0 || pipe2(answer, O_CLOEXEC) != 0) Fail("pipe2");
  char self[PATH_MAX] = {};
  if (readlink("/proc/self/exe", self, sizeof self - 1) < 0) Fail("readlink");
  const std::string index = std::to_string(c + 1);
  const std::string device = std::to_string(options.device + c % options.devices);
  const std::string memory = std::to_string(options.memory_bytes);
  const std::string children = std::to_string(options.children);
  const std::string devices = std::to_string(options.devices);
  const bool sabotage = options.sabotage && c == 1;
  children_[c].pid = fork();
  if (children_[c].pid == 0) {
    dup2(ask[0], STDIN_FILENO);
    dup2(answer[1], STDOUT_FILENO);
    Equip(c);
    execl(self, self, "--child", index.c_str(), "--children", children.c_str(), "--device",
          device.c_str(), "--devices", devices.c_str(), "--memory", memory.c_str(),
          sabotage ? "--sabotage" : nullptr, nullptr);
    _exit(127);
  }
  if (children_[c].pid < 0) Fail("fork: %s", strerror(errno));
  close(ask[0]);
  close(answer[1]);
  children_[c].ask = ask[1];
  children_[c].answer = answer[0];
}

}  // namespace workloads
