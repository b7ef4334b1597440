// A parent without a GPU and two children with one, each a program of its own, asked for every
// round over pipes. Only the parent takes SIGTERM; the children end, after their own check, when
// their pipe closes.
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

#include "common/arithmetic.h"
#include "common/steady.h"

namespace workloads {
namespace {

constexpr int kChildren = 2;
constexpr uint64_t kReady = 1;

void WriteWord(int fd, uint64_t word) {
  if (write(fd, &word, sizeof word) != sizeof word) Fail("pipe: %s", strerror(errno));
}

// False at the end of the pipe.
bool ReadWord(int fd, uint64_t* word) {
  ssize_t length;
  do {
    length = read(fd, word, sizeof *word);
  } while (length < 0 && errno == EINTR);
  if (length != 0 && length != sizeof *word) Fail("pipe: %zd bytes", length);
  return length != 0;
}

struct Child {
  pid_t pid = 0;
  int ask = -1;
  int answer = -1;
};

// The child's side: stdin brings rounds, stdout takes checksums, and a first word says "ready".
[[noreturn]] void LiveAsChild(const Options& options) {
  // Words for a reader must not get between those for the parent.
  const int answer = dup(STDOUT_FILENO);
  dup2(STDERR_FILENO, STDOUT_FILENO);
  Steady steady(1000 + static_cast<uint64_t>(options.child));
  steady.SetUp(options);
  WriteWord(answer, kReady);
  uint64_t round = 0;
  while (ReadWord(STDIN_FILENO, &round)) WriteWord(answer, steady.Round(round));
  if (options.sabotage) steady.Sabotage();
  steady.Verify();
  steady.TearDown();
  _exit(0);
}

class Tree : public Workload {
 public:
  void SetUp(const Options& options) override {
    // A child that died is to be reported, not to be died of.
    signal(SIGPIPE, SIG_IGN);
    for (int c = 0; c < kChildren; ++c) Start(c, options);
    for (Child& child : children_) {
      uint64_t word = 0;
      if (!ReadWord(child.answer, &word) || word != kReady) Fail("a child did not start");
    }
  }

  uint64_t Round(uint64_t round) override {
    for (Child& child : children_) WriteWord(child.ask, round);
    uint64_t sum = 0;
    for (Child& child : children_) {
      uint64_t checksum = 0;
      if (!ReadWord(child.answer, &checksum)) Fail("child %d is gone", child.pid);
      sum = Mix64(sum) + checksum;
    }
    return sum;
  }

  void Verify() override {
    for (Child& child : children_) {
      close(child.ask);
      int status = 0;
      if (waitpid(child.pid, &status, 0) != child.pid) Fail("waitpid: %s", strerror(errno));
      if (status != 0) Fail("child %d found a difference", child.pid);
    }
  }

  // The second child does it, on its own memory (see Start).
  void Sabotage() override {}
  void TearDown() override {}

 private:
  void Start(int c, const Options& options) {
    int ask[2], answer[2];
    if (pipe2(ask, O_CLOEXEC) != 0 || pipe2(answer, O_CLOEXEC) != 0) Fail("pipe2");
    char self[PATH_MAX] = {};
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0) Fail("readlink");
    const std::string index = std::to_string(c + 1);
    const std::string device = std::to_string(options.device);
    const std::string memory = std::to_string(options.memory_bytes);
    const bool sabotage = options.sabotage && c == 1;
    children_[c].pid = fork();
    if (children_[c].pid == 0) {
      dup2(ask[0], STDIN_FILENO);
      dup2(answer[1], STDOUT_FILENO);
      execl(self, self, "--child", index.c_str(), "--device", device.c_str(), "--memory",
            memory.c_str(), sabotage ? "--sabotage" : nullptr, nullptr);
      _exit(127);
    }
    if (children_[c].pid < 0) Fail("fork: %s", strerror(errno));
    close(ask[0]);
    close(answer[1]);
    children_[c].ask = ask[1];
    children_[c].answer = answer[0];
  }

  std::array<Child, kChildren> children_;
};

}  // namespace
}  // namespace workloads

int main(int argc, char** argv) {
  const workloads::Options options = workloads::Begin(argc, argv);
  if (options.child > 0) workloads::LiveAsChild(options);
  workloads::Tree tree;
  workloads::Run(tree, options);
}
