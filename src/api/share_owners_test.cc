#include "api/share_owners.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "base/file.h"

namespace stasis::api {
namespace {

class ShareOwnersTest : public ::testing::Test {
 protected:
  ShareOwnersTest() { EXPECT_NE(::mkdtemp(folder_), nullptr); }
  ~ShareOwnersTest() override { std::filesystem::remove_all(folder_); }

  std::string path() const { return std::string(folder_) + "/sharing"; }
  // Adds an owner with one pinned job, and returns the owner's entry.
  static std::string AddAlice(ShareOwners& owners) {
    Caller alice;
    alice.uid = alice.account = 4001;
    v1::WorkerRequest work;
    work.set_caller(4001);
    EXPECT_TRUE(owners.Add(alice, work));
    owners.SetSaved({{"k/llama", {.pinned = true, .swaps = 3}}});
    return owners.All().begin()->first;
  }

  char folder_[32] = "/tmp/share-owners-XXXXXX";
};

TEST_F(ShareOwnersTest, TheNextDaemonKnowsOwnersAndAccounts) {
  ShareOwners first(path());
  const std::string entry = AddAlice(first);
  ShareOwners second(path());
  const auto saved = second.Load();
  EXPECT_TRUE(saved.at("k/llama").pinned);
  EXPECT_EQ(saved.at("k/llama").swaps, 3u);
  EXPECT_EQ(second.All().begin()->first, entry);
}

TEST_F(ShareOwnersTest, AFileOfAnEarlierBootIsIgnored) {
  {
    ShareOwners owners(path());
    AddAlice(owners);
  }
  v1::ShareState state;
  ASSERT_TRUE(state.ParseFromString(ReadFile(path(), 1 << 20).value()));
  state.set_boot_id("another");
  ASSERT_TRUE(ReplaceFile(path(), state.SerializeAsString()));
  ShareOwners owners(path());
  EXPECT_TRUE(owners.Load().empty());
  EXPECT_TRUE(owners.All().empty());
}

TEST_F(ShareOwnersTest, ADumpedJobStaysPinned) {
  ShareOwners owners(path());
  const std::string entry = AddAlice(owners);
  owners.SetJobs(entry, {"k/llama"});
  owners.SetSaved({});  // it was dumped, and ended
  EXPECT_TRUE(owners.IsPinned("k/llama"));
  EXPECT_TRUE(ShareOwners(path()).Load().at("k/llama").pinned);
  owners.SetSaved({{"k/llama", {.pinned = false}}});  // it was restored and unpinned
  EXPECT_FALSE(owners.IsPinned("k/llama"));
}

TEST_F(ShareOwnersTest, AnEndedJobIsForgotten) {
  ShareOwners owners(path());
  const std::string entry = AddAlice(owners);
  owners.SetJobs(entry, {});
  owners.SetSaved({});
  EXPECT_FALSE(owners.IsPinned("k/llama"));
}

}  // namespace
}  // namespace stasis::api
