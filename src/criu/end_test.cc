#include "criu/end.h"

#include <sys/wait.h>

#include "criu/testing.h"

namespace stasis::criu {
namespace {

using std::chrono::milliseconds;

constexpr Patience kShort{
    .undo = milliseconds(50), .alarm = milliseconds(3000), .killed = milliseconds(30000)};

// Programs that behave like a CRIU that hangs or fails.
struct Case {
  const char* name;
  const char* script;
  Ended ended;
  int signal;  // the signal that kills it
};
constexpr Case kCases[] = {
    {"WritesNothing", "exec sleep 100", Ended::kByItself, SIGALRM},
    {"HangsForEver", "trap '' ALRM; echo; exec sleep 100", Ended::kKilled, SIGKILL},
};

class EndDumpOf : public ::testing::TestWithParam<Case> {};

TEST_P(EndDumpOf, EscalatesStepByStep) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  SpawnOptions options;
  options.argv = {"sh", "-c", GetParam().script};
  options.fds[1] = ends[1];
  auto child = Subprocess::Spawn(options);
  ASSERT_TRUE(child);
  if (GetParam().signal == SIGKILL) {
    char byte;
    ASSERT_EQ(::read(ends[0], &byte, 1), 1);  // the handler is installed
  }
  EXPECT_EQ(EndDump({child->pid()}, child->pidfd(), kShort), GetParam().ended);
  auto status = child->Wait();
  ASSERT_TRUE(status);
  EXPECT_TRUE(WIFSIGNALED(*status));
  EXPECT_EQ(WTERMSIG(*status), GetParam().signal);
}

INSTANTIATE_TEST_SUITE_P(All, EndDumpOf, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace stasis::criu
