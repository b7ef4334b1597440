// A GPU program with a child that has exited and is not reaped until the end.
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/steady.h"

namespace workloads {
namespace {

constexpr int kChildsExitCode = 42;

class Zombie : public Steady {
 public:
  void SetUp(const Options& options) override {
    // Fork before the driver opens any file, so that the child inherits none of them.
    child_ = fork();
    if (child_ < 0) Fail("fork: %s", strerror(errno));
    if (child_ == 0) _exit(kChildsExitCode);
    siginfo_t info{};
    if (waitid(P_PID, static_cast<id_t>(child_), &info, WEXITED | WNOWAIT) != 0) {
      Fail("waitid: %s", strerror(errno));
    }
    Steady::SetUp(options);
  }

  void Verify() override {
    Steady::Verify();
    int status = 0;
    if (waitpid(child_, &status, 0) != child_) Fail("cannot reap the zombie: %s", strerror(errno));
    if (!WIFEXITED(status) || WEXITSTATUS(status) != kChildsExitCode) {
      Fail("the zombie has the wrong exit status 0x%x", static_cast<unsigned>(status));
    }
  }

 private:
  pid_t child_ = 0;
};

}  // namespace
}  // namespace workloads

int main(int argc, char** argv) {
  const workloads::Options options = workloads::Begin(argc, argv);
  workloads::Zombie zombie;
  workloads::Run(zombie, options);
}
