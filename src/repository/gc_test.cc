#include "repository/gc.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/checksum.h"
#include "repository/record_clock.h"
#include "repository/repository_testing.h"

namespace stasis::repository {

namespace {

using testing::Contents;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::MakeContents;
using testing::Method;

class GcTest : public testing::RepositoryTest {
 protected:
  // Stores a pack and the indexes of a push. Nothing needs these objects yet.
  PushId PutObjects() {
    const PushId push = *PushId::Random();
    for (const std::string& key : {PackKey({push, 1}), PlaceKey(push), NamesKey(push)}) {
      const std::string_view parts[] = {"data"};
      EXPECT_TRUE(objects_.Put(key, parts));
    }
    return push;
  }
  void PutPending(const PushId& push, const Pending& pending) {
    EXPECT_TRUE(
        repository_.Write(RecordKind::kPending, PendingKey(push), EncodePending(pending), {}));
  }
};

TEST_F(GcTest, OfAnEmptyRepositoryDoesNothing) {
  const GcReport report = MustCollect();
  EXPECT_EQ(report.deleted_packs, 0u);
  EXPECT_THAT(Keys(), ElementsAre("repo"));
}

TEST_F(GcTest, DeletesWhatNoImageNeeds) {
  MustPush("first", MakeContents(1));
  Contents other = MakeContents(2);
  other.files = {{"cpu/other.img", "other"}};  // nothing in common
  MustPush("second", other);
  EXPECT_EQ(MustCollect().deleted_packs, 0u);
  ASSERT_TRUE(DeleteImage(repository_, "first"));
  const GcReport report = MustCollect();
  EXPECT_EQ(report.images, 1u);
  EXPECT_EQ(report.deleted_packs, 1u);
  EXPECT_GT(report.deleted_bytes, MakeContents(1).gpu.size());
  EXPECT_EQ(Keys().size(), 5u);
  ExpectPulls("second", other);
  ASSERT_TRUE(DeleteImage(repository_, "second"));
  MustCollect();
  EXPECT_THAT(Keys(), ElementsAre("repo"));
}

TEST_F(GcTest, KeepsAPackThatAnotherImageSharesInPart) {
  Contents contents = MakeContents(1);
  MustPush("first", contents);
  contents.gpu.resize(size_t{30} * testing::kTestBlock);
  MustPush("second", contents);
  ASSERT_TRUE(DeleteImage(repository_, "first"));
  EXPECT_EQ(MustCollect().deleted_packs, 0u);
  ExpectPulls("second", contents);
}

TEST_F(GcTest, DeletesNothingOfOthersIfItIsToldSo) {
  const int64_t long_ago =
      UnixNowNs() - std::chrono::nanoseconds(kRecordAbandoned).count() - 1'000'000'000;
  const PushId own = PutObjects(), other = PutObjects();
  PutPending(other, {long_ago, {}, {}});
  const std::vector<std::string> before = Keys();
  GcOptions options;
  options.only = std::set<PushId>{own};
  const auto report = CollectGarbage(repository_, options);
  ASSERT_TRUE(report) << report.error().ToString();
  EXPECT_EQ(report->deleted_packs, 1u);
  EXPECT_EQ(report->removed_records, 0u);
  EXPECT_EQ(Keys().size(), before.size() - 3);
  EXPECT_THAT(Keys("packs/"), ElementsAre(PackKey({other, 1})));
}

TEST_F(GcTest, KeepsWhatPushesNeed) {
  const PushId own = PutObjects();
  const PushId relied = PutObjects();
  PutObjects();
  PutPending(own, {UnixNowNs(), {own}, {{relied, 1}}});
  const GcReport report = MustCollect();
  EXPECT_EQ(report.pending, 1u);
  EXPECT_EQ(report.deleted_packs, 1u);
  EXPECT_EQ(Keys("packs/").size(), 2u);
  EXPECT_EQ(Keys("index/").size(), 4u);
}

TEST_F(GcTest, RemovesRecordsOfKilledProcesses) {
  const int64_t long_ago =
      UnixNowNs() - std::chrono::nanoseconds(kRecordAbandoned).count() - 1'000'000'000;
  const PushId own = PutObjects();
  PutPending(own, {long_ago, {own}, {}});
  ASSERT_TRUE(repository_.Write(RecordKind::kCondemned, CondemnedKey(own),
                                EncodeCondemned({long_ago, {{own, 1}}, {}}), {}));
  const GcReport report = MustCollect();
  EXPECT_EQ(report.removed_records, 2u);
  EXPECT_EQ(report.deleted_packs, 1u);
  EXPECT_THAT(Keys(), ElementsAre("repo"));
}

TEST_F(GcTest, RemovesADamagedRecordOnlyWhenItIsOld) {
  const int64_t now = UnixNowNs() / 1'000'000'000;
  const int64_t day = std::chrono::seconds(kRecordAbandoned).count();
  for (const bool of_push : {true, false}) {
    const PushId id = PutObjects();
    const std::string key = of_push ? PendingKey(id) : CondemnedKey(id);
    objects_.Overwrite(key, "damaged");
    objects_.SetTime(key, now - day + 60);
    const size_t before = Keys().size();
    const auto refused = CollectGarbage(repository_);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::kDataLoss);
    EXPECT_THAT(refused.error().message, HasSubstr(key));
    EXPECT_THAT(refused.error().hint, HasSubstr("deleted by hand if no"));
    EXPECT_EQ(Keys().size(), before);
    objects_.SetTime(key, now - day);
    const GcReport report = MustCollect();
    EXPECT_EQ(report.removed_records, 1u);
    EXPECT_EQ(report.deleted_packs, 1u);
    EXPECT_THAT(Keys(), ElementsAre("repo"));
  }
}

TEST_F(GcTest, KeepsAnOldRecordOfALaterVersion) {
  const PushId id = *PushId::Random();
  PutPending(id, {UnixNowNs(), {id}, {}});
  // The record has another format version and a correct checksum.
  std::string record = objects_.Objects()[PendingKey(id)];
  record = *sealing_->OpenObject(PendingKey(id), record, "");
  record[8] += 1;
  record.resize(record.size() - Id128::kBytes);
  record += Checksum(record).View();
  objects_.Overwrite(PendingKey(id), *sealing_->SealObject(PendingKey(id), record));
  objects_.SetTime(PendingKey(id), 0);
  const auto refused = CollectGarbage(repository_);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kUnimplemented);
  EXPECT_THAT(Keys("pending/"), ElementsAre(PendingKey(id)));
}

TEST_F(GcTest, KeepsTheRecordsOfOtherGcs) {
  const GcId other = *GcId::Random();
  ASSERT_TRUE(repository_.Write(RecordKind::kCondemned, CondemnedKey(other),
                                EncodeCondemned({UnixNowNs(), {{other, 1}}, {}}), {}));
  PutObjects();
  MustCollect();
  EXPECT_THAT(Keys("condemned/"), ElementsAre(CondemnedKey(other)));
}

TEST_F(GcTest, DeletesNothingIfARecordCannotBeRead) {
  MustPush("first", MakeContents(1));
  PutObjects();
  const std::string image = objects_.Objects()["images/first"];
  objects_.Overwrite("images/first", image.substr(0, image.size() - 3));
  const size_t before = Keys().size();
  const auto report = CollectGarbage(repository_);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, Code::kDataLoss);
  EXPECT_EQ(Keys().size(), before);
}

TEST_F(GcTest, DeletesNothingIfListsMayBeOld) {
  PutObjects();
  const size_t before = Keys().size();
  objects_.set_lists(Fail(Code::kFailedPrecondition, "lists are cached"));
  const auto refused = CollectGarbage(repository_);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kFailedPrecondition);
  EXPECT_EQ(Keys().size(), before);
  objects_.set_lists({});
  EXPECT_EQ(MustCollect().deleted_packs, 1u);
}

TEST_F(GcTest, NamesUnknownObjectsAndKeepsThem) {
  for (const char* key : {"packs/readme", "packs/00ff/1", "index/x.place", "images/.hidden"}) {
    const std::string_view parts[] = {"data"};
    ASSERT_TRUE(objects_.Put(key, parts));
  }
  EXPECT_EQ(MustCollectAll().unknown.size(), 4u);
  EXPECT_EQ(Keys().size(), 5u);
}

// Simulates a push that looks before the gc condemns anything, and publishes before the gc looks
// again.
TEST_F(GcTest, LooksAgainAfterItHasCondemned) {
  MustPush("first", MakeContents(1));
  const auto objects = objects_.Objects();
  ASSERT_TRUE(DeleteImage(repository_, "first"));
  objects_.set_hook([&](Method method, const std::string& key) -> Status {
    if (method == Method::kPut && key.starts_with("condemned/")) {
      objects_.Overwrite("images/first", objects.at("images/first"));
    }
    return {};
  });
  EXPECT_EQ(MustCollect().deleted_packs, 0u);
  ExpectPulls("first", MakeContents(1));
  EXPECT_THAT(Keys("condemned/"), IsEmpty());
}

TEST_F(GcTest, CondemnsAgainWhenItsRecordIsTooOld) {
  PutObjects();
  size_t written = 0;
  objects_.set_hook([&](Method method, const std::string& key) -> Status {
    written += method == Method::kPut && key.starts_with("condemned/") ? 1 : 0;
    if (written < 4) return {};
    return Fail(Code::kCancelled, "enough");  // otherwise the gc would never end
  });
  GcOptions options;
  options.record_valid = std::chrono::nanoseconds(0);
  EXPECT_FALSE(CollectGarbage(repository_, options));
  EXPECT_EQ(Keys("packs/").size(), 1u);
}

TEST_F(GcTest, KeepsItsRecordIfADeletionMayStillTakeEffect) {
  PutObjects();
  objects_.set_hook([&](Method method, const std::string& key) -> Status {
    if (method != Method::kDelete || !key.starts_with("packs/")) return {};
    return Fail(Code::kUnavailable, "the connection broke");
  });
  EXPECT_FALSE(CollectGarbage(repository_));
  objects_.set_hook(nullptr);
  EXPECT_EQ(Keys("condemned/").size(), 1u);
  MustCollectAll();
  EXPECT_THAT(Keys(), ElementsAre("repo"));
}

TEST_F(GcTest, CanBeCancelled) {
  PutObjects();
  GcOptions options;
  options.progress = [](uint64_t done, uint64_t) { return done < 1; };
  const auto report = CollectGarbage(repository_, options);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, Code::kCancelled);
  EXPECT_THAT(Keys("condemned/"), IsEmpty());
  EXPECT_THAT(Keys("packs/"), IsEmpty());
  EXPECT_EQ(Keys("index/").size(), 2u);
}

}  // namespace

}  // namespace stasis::repository
