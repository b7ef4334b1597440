#include "ipc/resident.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "base/install_layout.h"
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
