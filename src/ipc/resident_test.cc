#include "ipc/resident.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "base/install_layout.h"
#include "ipc/helper_server.h"
#include "ipc/socket.h"

namespace stasis::ipc {
namespace {

class ResidentTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/stasis-resident-test.XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    top_ = name;
    path_ = top_ + "/helpers/name-build.helper";
  }
  void TearDown() override { std::filesystem::remove_all(top_); }

  std::string top_, path_;
};

TEST_F(ResidentTest, NoHelperListens) {
  EXPECT_EQ(ConnectResident(path_).error().code, Code::kNotFound);
  auto count = DismissAll(top_ + "/helpers", "", "leave", {});
  ASSERT_TRUE(count);
  EXPECT_EQ(*count, 0);
}

TEST_F(ResidentTest, AClaimedNameAnswersWhenItsHelperListens) {
  auto name = ClaimResidentName(path_);
  ASSERT_TRUE(name) << name.error().ToString();
  EXPECT_EQ(ConnectResident(path_).error().code, Code::kNotFound) << "no listener yet";
  ASSERT_EQ(::listen(name->socket.get(), 8), 0);
  auto helper = ConnectResident(path_);
  ASSERT_TRUE(helper) << helper.error().ToString();
  EXPECT_EQ(helper->pid(), ::getpid());
  EXPECT_TRUE(helper->resident());
  name->lock.Reset();
  EXPECT_EQ(ClaimResidentName(path_).error().code, Code::kAborted) << "it runs already";
}

TEST_F(ResidentTest, ABusyHelperDisconnects) {
  auto name = ClaimResidentName(path_);
  ASSERT_TRUE(name);
  ASSERT_EQ(::listen(name->socket.get(), 8), 0);
  auto helper = ConnectResident(path_);
  ASSERT_TRUE(helper);
  UniqueFd(::accept(name->socket.get(), nullptr, nullptr)).Reset();
  auto left = Dismiss(*helper, "leave", Deadline::In(std::chrono::seconds(10)));
  ASSERT_TRUE(left);
  EXPECT_FALSE(*left);
}

// The test process itself is the helper: a kill would end the test.
TEST_F(ResidentTest, AHelperWithoutTimeToAnswerIsNotKilled) {
  auto name = ClaimResidentName(path_);
  ASSERT_TRUE(name);
  ASSERT_EQ(::listen(name->socket.get(), 8), 0);
  const ResidentOptions options{path_, "leave"};
  auto silent = [](HelperProcess& helper, const Deadline& answer) -> Result<Greeting> {
    return AwaitReadable(helper.socket(), answer) ? Greeting::kBroken : Greeting::kSilent;
  };
  const auto soon = [] { return Deadline::In(std::chrono::milliseconds(20)); };
  auto opened = OpenResident({}, options, silent, soon());
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Code::kDeadlineExceeded);
  auto helper = ConnectResident(path_);
  ASSERT_TRUE(helper);
  EXPECT_EQ(Dismiss(*helper, "leave", soon()).error().code, Code::kDeadlineExceeded);
}

TEST_F(ResidentTest, AHelperThatDiesAtItsStartIsReaped) {
  HelperCommand command;
  command.program = "/bin/false";
  auto greet = [](HelperProcess& helper, const Deadline&) -> Result<Greeting> {
    char byte;
    auto packet = ReceivePacket(helper.socket(), &byte, 1);
    return packet && packet->size > 0 ? Greeting::kServes : Greeting::kBusy;
  };
  auto opened = OpenResident(command, {path_, "leave"}, greet, {});
  ASSERT_TRUE(opened) << opened.error().ToString();
  EXPECT_FALSE(*opened);
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "no child is left";
}

TEST_F(ResidentTest, ARemovedNameIsNoticed) {
  auto name = ClaimResidentName(path_);
  ASSERT_TRUE(name);
  NameWatch watch(path_);
  ASSERT_GE(watch.fd(), 0);
  std::filesystem::permissions(path_, std::filesystem::perms(0700));
  EXPECT_FALSE(watch.IsRemoved());
  EXPECT_FALSE(AwaitReadable(watch.fd(), Deadline::In(std::chrono::milliseconds(0))));
  std::filesystem::remove_all(top_ + "/helpers");
  EXPECT_TRUE(AwaitReadable(watch.fd(), Deadline::In(std::chrono::seconds(10))));
  EXPECT_TRUE(watch.IsRemoved());
  RemoveResidentName(path_);
  EXPECT_FALSE(std::filesystem::exists(top_ + "/helpers"));
  // Another helper has the name now.
  name->lock.Reset();
  ASSERT_TRUE(ClaimResidentName(path_));
  EXPECT_TRUE(watch.IsRemoved());
  EXPECT_EQ(NameWatch("").fd(), -1);
}

TEST_F(ResidentTest, AClientOfAnotherUserIsRejected) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  auto name = ClaimResidentName(path_);
  ASSERT_TRUE(name);
  ASSERT_EQ(::listen(name->socket.get(), 8), 0);
  for (const std::string& path : {top_, top_ + "/helpers", path_}) {
    std::filesystem::permissions(path, std::filesystem::perms(0777));
  }
  const pid_t child = ::fork();
  if (child == 0) {
    sockaddr_un address{AF_UNIX, {}};
    path_.copy(address.sun_path, sizeof address.sun_path - 1);
    const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET, 0);
    const bool connected =
        ::setresuid(65534, 65534, 65534) == 0 &&
        ::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    ::_exit(connected ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  EXPECT_FALSE(AcceptClient(name->socket.get()));
  std::filesystem::permissions(top_ + "/helpers", std::filesystem::perms(0700));
  auto own = ConnectResident(path_);
  ASSERT_TRUE(own);
  EXPECT_TRUE(AcceptClient(name->socket.get()));
}

TEST_F(ResidentTest, AStaleNameIsReplaced) {
  { ASSERT_TRUE(ClaimResidentName(path_)); }
  EXPECT_TRUE(std::filesystem::exists(path_));
  EXPECT_TRUE(ClaimResidentName(path_));
  RemoveResidentName(path_);
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(ResidentTest, AFolderThatOthersMayEnterIsRejected) {
  ASSERT_TRUE(ClaimResidentName(path_));
  std::filesystem::permissions(top_ + "/helpers", std::filesystem::perms(0750));
  EXPECT_EQ(ConnectResident(path_).error().code, Code::kPermissionDenied);
  EXPECT_FALSE(ClaimResidentName(path_));
}

TEST_F(ResidentTest, TheNameHoldsTheBuild) {
  auto path = ResidentPath("/run", "mover-1", "/proc/self/exe");
  ASSERT_TRUE(path);
  EXPECT_TRUE(path->starts_with("/run/mover-1-") && path->ends_with(".helper")) << *path;
  EXPECT_EQ(ResidentPath("/run", "x", "/nowhere").error().code, Code::kNotFound);
}

}  // namespace
}  // namespace stasis::ipc
