#include "criu/preflight.h"

#include <sys/ptrace.h>
#include <sys/socket.h>

#include "criu/testing.h"

namespace stasis::criu {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace)

std::vector<Obstacle> Look(const Target& target, const Options& options = {}) {
  auto tree = process::ReadTree(target.pid());
  EXPECT_TRUE(IsOk(tree));
  auto stdio = PlanStdio(*tree);
  EXPECT_TRUE(IsOk(stdio));
  auto found = FindObstacles(*tree, options, *stdio);
  EXPECT_TRUE(IsOk(found));
  return *found;
}

std::string Names(const std::vector<Obstacle>& found) {
  std::string names;
  for (const auto& obstacle : found) names += obstacle.name + ": " + obstacle.message + "\n";
  return names;
}

// What the program does, what is found, and the option that lets it pass.
struct Case {
  const char* what;
  const char* obstacle;
  const char* words;       // in the message
  const char* hint;        // in the hint
  const char* allowed_by;  // K=V, or null where nothing helps
};
constexpr Case kCases[] = {
    {"io-uring", "io_uring", "an io_uring (fd ", "UV_USE_IO_URING=0", nullptr},
    {"userfaultfd", "special-file", "a userfaultfd (fd ", "", nullptr},
    {"device", "device", "the device /dev/", "", nullptr},
    {"tcp-connect", "tcp", "an open TCP connection (fd ", "--tcp=close", "tcp=close"},
    {"tcp-waiting", "tcp-in-flight", "not accepted yet", "skip-in-flight", "skip-in-flight"},
    {"file-lock", "file-lock", "state.lock (fd ", "--file-locks", "file-locks"},
    {"renamed", "deleted-file", "has another name", "--link-remap", "link-remap"},
    {"deleted-big", "deleted-file", "more than is taken", "ghost-limit", "ghost-limit=1000000000"},
    {"vsock", "socket", "a socket of family", "", nullptr},
};

class Obstacles : public WithCriu, public ::testing::WithParamInterface<Case> {};

TEST_P(Obstacles, AreFoundByNameProcessAndDescriptor) {
  const Case& c = GetParam();
  Target target({c.what});
  auto found = Look(target);
  ASSERT_FALSE(found.empty());
  const Obstacle& first = found.front();
  EXPECT_EQ(first.name, c.obstacle) << Names(found);
  EXPECT_EQ(first.pid, target.pid());
  EXPECT_GE(first.fd, 0);
  EXPECT_NE(first.message.find("process " + process::ToString(target.pid()) + " (criu_target)"),
            std::string::npos)
      << first.message;
  EXPECT_NE(first.message.find(c.words), std::string::npos) << first.message;
  EXPECT_NE(first.hint.find(c.hint), std::string::npos) << first.hint;
  if (c.allowed_by == nullptr) return;
  Options options;
  ASSERT_TRUE(IsOk(options.Set(c.allowed_by)));
  EXPECT_TRUE(Look(target, options).empty()) << Names(Look(target, options));
}

INSTANTIATE_TEST_SUITE_P(All, Obstacles, ::testing::ValuesIn(kCases), [](const auto& info) {
  std::string name = info.param.what;
  std::erase(name, '-');
  return name;
});

class BeforeADump : public WithCriu {};

// What CRIU carries must not be refused: each of these is also dumped and restored in
// roundtrip_test.cc.
TEST_F(BeforeADump, HasNothingAgainstWhatCriuCarries) {
  Target target({"memory", "pipe", "unix-pair", "deleted", "timer", "tcp-listen", "children",
                 "threads", "zombie", "anon"});
  EXPECT_EQ(Names(Look(target)), "");
}

TEST_F(BeforeADump, FindsAConnectionToAProgramOutside) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  UniqueFd ours(ends[0]), theirs(ends[1]);
  Target target({}, {{7, theirs.get()}});
  theirs.Reset();
  auto found = Look(target);
  ASSERT_EQ(found.size(), 1u) << Names(found);
  EXPECT_EQ(found[0].name, "unix-socket");
  EXPECT_EQ(found[0].fd, 7);
}

TEST_F(BeforeADump, FindsATracer) {
  Target target({});
  ASSERT_EQ(::ptrace(PTRACE_SEIZE, target.pid().value, nullptr, nullptr), 0);
  auto found = Look(target);
  ASSERT_EQ(found.size(), 1u) << Names(found);
  EXPECT_EQ(found[0].name, "traced");
  EXPECT_NE(found[0].message.find("is traced by process " + std::to_string(::getpid())),
            std::string::npos);
}

TEST_F(BeforeADump, FindsASessionFromOutsideOfThePidNamespace) {
  const std::vector<std::string> inside = {"unshare", "--pid", "--fork", "--mount-proc"};
  for (bool own : {false, true}) {
    std::vector<std::string> launcher = inside;
    if (own) launcher.push_back("setsid");
    Target target({"children"}, {}, /*new_session=*/true, launcher);
    auto found = Look(target);
    std::erase_if(found, [](const Obstacle& o) { return o.name != "session"; });
    ASSERT_EQ(found.size(), own ? 0u : 1u) << "one for all that are in it\n" << Names(found);
    if (own) continue;
    EXPECT_EQ(found[0].pid, target.pid());
    EXPECT_EQ(found[0].code, Code::kUnimplemented);
    EXPECT_NE(found[0].message.find("begun outside of its pid namespace"), std::string::npos);
    EXPECT_NE(found[0].hint.find("setsid"), std::string::npos);
  }
}

TEST_F(BeforeADump, SaysTheFirstAndCountsTheOthers) {
  Target target({"tcp-connect", "file-lock"});
  auto tree = process::ReadTree(target.pid());
  ASSERT_TRUE(IsOk(tree));
  Status status = Preflight(*tree, {}, {});
  ASSERT_FALSE(status);
  EXPECT_EQ(ExitCode(status.error()), 5);
  EXPECT_NE(status.error().message.find("; and 2 more stand in the way"), std::string::npos)
      << status.error().message;
  EXPECT_TRUE(target.Counts());
}

}  // namespace
}  // namespace stasis::criu
