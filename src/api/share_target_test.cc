#include "api/share_target.h"

#include <gtest/gtest.h>

#include <map>

namespace stasis::api {
namespace {

constexpr uid_t kHerUid = 4001, kHisUid = 4002;

class ShareTargetTest : public ::testing::Test {
 protected:
  std::string Find(uid_t uid, const std::string& target) {
    const std::map<pid_t, std::string> processes = {{100, "4001-a/hers"}, {200, "4002-b/his"}};
    const SharedPrograms programs{
        [](const std::string& id) { return id == "4001-a/hers" || id == "4002-b/his"; },
        [&](process::HostPid pid) {
          auto found = processes.find(pid.value);
          return found == processes.end() ? "" : found->second;
        },
        [](const std::string& id) {
          return std::optional(id.starts_with("4001") ? kHerUid : kHisUid);
        },
        [](process::HostPid pid) {
          // 102 is a child of 101, and that of the root 100.
          std::vector<process::HostPid> lineage;
          for (pid_t one = pid.value; one > 100 && one < 103; --one) lineage.push_back({one});
          lineage.push_back({pid.value < 103 ? 100 : pid.value});
          return lineage;
        }};
    Caller caller;
    caller.uid = uid;
    return FindShared(caller, {uid == kHerUid ? "4001-a" : "4002-b"}, target, programs);
  }
};

TEST_F(ShareTargetTest, AJobOrAProcessOfTheCaller) {
  EXPECT_EQ(Find(kHerUid, "hers"), "4001-a/hers");
  EXPECT_EQ(Find(kHerUid, "100"), "4001-a/hers");
  EXPECT_EQ(Find(kHisUid, "200"), "4002-b/his");
  EXPECT_EQ(Find(kHisUid, "nobody"), "");
  EXPECT_EQ(Find(kHisUid, ""), "");
}

TEST_F(ShareTargetTest, AProcessOfAnotherUserIsNotFound) {
  EXPECT_EQ(Find(kHisUid, "hers"), "");
  EXPECT_EQ(Find(kHisUid, "100"), "");
  EXPECT_EQ(Find(0, "100"), "4001-a/hers") << "root may manage all";
}

TEST_F(ShareTargetTest, AProcessInTheMiddleOfTheTree) {
  EXPECT_EQ(Find(kHerUid, "102"), "4001-a/hers");
  EXPECT_EQ(Find(kHerUid, "300"), "");
}

}  // namespace
}  // namespace stasis::api
