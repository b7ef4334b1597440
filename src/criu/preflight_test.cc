#include "criu/preflight.h"

#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

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

// The argument of the target, the expected obstacle, and the option that allows it.
struct Case {
  const char* what;
  const char* obstacle;
  const char* words;       // substring of the message
  const char* hint;        // substring of the hint
  const char* allowed_by;  // the option K=V, or null if no option allows it
};
constexpr Case kCases[] = {
    {"io-uring", "io_uring", "an io_uring (fd ", "UV_USE_IO_URING=0", nullptr},
    {"userfaultfd", "special-file", "a userfaultfd (fd ", "", nullptr},
    {"device", "device", "the device /dev/", "", nullptr},
    {"tcp-connect", "tcp", "an open TCP connection (fd ", "--tcp=close", "tcp=close"},
    {"tcp-waiting", "tcp-in-flight", "not accepted yet", "skip-in-flight", "skip-in-flight"},
    {"file-lock", "file-lock", "state.lock (fd ", "--file-locks", "file-locks"},
    {"renamed", "deleted-file", "has another hard link", "--link-remap", "link-remap"},
    {"deleted-big", "deleted-file", "more than the limit", "ghost-limit", "ghost-limit=1000000000"},
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

// Resources that CRIU supports must be accepted: roundtrip_test.cc dumps and restores each of
// these.
TEST_F(BeforeADump, AcceptsResourcesThatCriuSupports) {
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

// A parent and its child that connect and disconnect in a loop.
class Reconnecting {
 public:
  Reconnecting() {
    parent_ = ::fork();
    if (parent_ == 0) Run();
  }
  ~Reconnecting() {
    ::kill(parent_, SIGKILL);
    ::waitpid(parent_, nullptr, 0);
  }
  process::HostPid pid() const { return {parent_}; }

 private:
  [[noreturn]] static void Run() {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    int listener = ::socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    // Without a path, the kernel assigns an abstract name.
    (void)::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address.sun_family);
    socklen_t size = sizeof address;
    (void)::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
    ::listen(listener, 8);
    char byte = 0;
    if (::fork() == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      while (true) {
        int connection = ::accept(listener, nullptr, nullptr);
        (void)!::write(connection, &byte, 1);
        (void)!::read(connection, &byte, 1);
        ::close(connection);
      }
    }
    ::close(listener);
    while (true) {
      int connection = ::socket(AF_UNIX, SOCK_STREAM, 0);
      (void)::connect(connection, reinterpret_cast<sockaddr*>(&address), size);
      (void)!::read(connection, &byte, 1);
      ::close(connection);
    }
  }

  pid_t parent_;
};

TEST_F(BeforeADump, AcceptsConnectionsThatComeAndGo) {
  Reconnecting program;
  ASSERT_TRUE(Eventually([&] {
    auto tree = process::ReadTree(program.pid());
    return tree && tree->members.size() == 2;
  }));
  auto tree = process::ReadTree(program.pid());
  ASSERT_TRUE(IsOk(tree));
  for (int look = 0; look < 300; ++look) {
    auto found = FindObstacles(*tree, {}, {});
    ASSERT_TRUE(IsOk(found));
    std::erase_if(*found, [](const Obstacle& o) { return o.name != "unix-socket"; });
    ASSERT_TRUE(found->empty()) << "look " << look << ": " << Names(*found);
  }
}

// Another program, for example an MQTT broker, may listen under the name of a GPU's broker. Only
// the listening process shows whether it is the GPU's broker.
TEST_F(BeforeADump, FindsAConnectionToAFalseBroker) {
  char folder[] = "/tmp/preflight-test-XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  ::snprintf(address.sun_path, sizeof address.sun_path, "%s/broker.sock", folder);
  UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  UniqueFd connection(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::connect(connection.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  UniqueFd accepted(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  ASSERT_TRUE(accepted);
  Target target({}, {{7, connection.get()}});
  connection.Reset();
  auto found = Look(target);
  ASSERT_EQ(found.size(), 1u) << Names(found);
  EXPECT_NE(found[0].message.find(address.sun_path), std::string::npos) << found[0].message;
  ::unlink(address.sun_path);
  ::rmdir(folder);
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
    EXPECT_NE(found[0].message.find("started outside of its pid namespace"), std::string::npos);
    EXPECT_NE(found[0].hint.find("setsid"), std::string::npos);
  }
}

TEST_F(BeforeADump, ReportsTheFirstAndCountsTheOthers) {
  Target target({"tcp-connect", "file-lock"});
  auto tree = process::ReadTree(target.pid());
  ASSERT_TRUE(IsOk(tree));
  Status status = Preflight(*tree, {}, {});
  ASSERT_FALSE(status);
  EXPECT_EQ(ExitCode(status.error()), 5);
  EXPECT_NE(status.error().message.find("; 2 more obstacles prevent the dump"), std::string::npos)
      << status.error().message;
  EXPECT_TRUE(target.Counts());
}

}  // namespace
}  // namespace stasis::criu
