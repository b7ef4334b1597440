#include "repository/pull.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "repository/pulled_origin.h"
#include "repository/repository_testing.h"

namespace stasis::repository {

namespace {

using testing::Contents;
using testing::MakeContents;
using testing::NamesOf;
using testing::TempStore;

class PullTest : public testing::RepositoryTest {
 protected:
  std::string ErrorOfPull(Code code) {
    TempStore other;
    const auto report = PullImage("llama", other.path(), names_);
    if (report) return "pulled";
    EXPECT_EQ(report.error().code, code) << report.error().ToString();
    EXPECT_FALSE(PathExists(other / "llama"));
    EXPECT_THAT(*ListDir(other.path()), ::testing::IsEmpty());
    return report.error().ToString();
  }
  void Damage(const std::string& key, size_t at) {
    std::string data = objects_.Objects()[key];
    data[at] = static_cast<char>(data[at] ^ 4);
    objects_.Overwrite(key, data);
  }
};

TEST_F(PullTest, KeepsIdAndTimeAndSetsNoOwnOrigin) {
  const std::string pushed = WriteImage(local_.path(), "llama", MakeContents(1), names_, {},
                                        store::OriginKey(BlockSecret{7}));
  auto original = store::ImageReader::Open(pushed);
  ASSERT_TRUE(Push(repository_, **original, "llama", testing::PushWith(names_)));
  TempStore other;
  auto report = PullImage("llama", other.path(), names_);
  ASSERT_TRUE(report) << report.error().ToString();
  auto pulled = store::ImageReader::Open(report->path);
  ASSERT_TRUE(pulled);
  const store::Manifest& manifest = (*pulled)->manifest();
  EXPECT_EQ(manifest.image_id, (*original)->manifest().image_id);
  EXPECT_EQ(manifest.created_unix_ns, (*original)->manifest().created_unix_ns);
  EXPECT_EQ(manifest.job.argv, (*original)->manifest().job.argv);
  const store::OriginKey own(BlockSecret{7});
  EXPECT_EQ((*pulled)->OriginBy(&own), store::Origin::kUnknown);
}

TEST_F(PullTest, MakesTheRepositoryTheOrigin) {
  MustPush("llama", MakeContents(1));
  const BlockSecret secret{3};
  PullOptions options;
  options.names = &names_;
  options.origin = PulledOrigin(secret, repository_.info().id);
  TempStore other;
  auto report = Pull(repository_, "llama", other.path(), "llama", options);
  ASSERT_TRUE(report) << report.error().ToString();
  auto image = store::ImageReader::Open(report->path);
  EXPECT_EQ((*image)->OriginBy(&*options.origin), store::Origin::kOwn);
  const store::OriginKey own(secret);
  EXPECT_EQ((*image)->OriginBy(&own), store::Origin::kOther);
  const auto of_another_repository = PulledOrigin(secret, Id128{{1}});
  EXPECT_EQ((*image)->OriginBy(&of_another_repository), store::Origin::kOther);
}

TEST_F(PullTest, LinksUnitsThatLocalImagesHave) {
  const Contents contents = MakeContents(1);
  MustPush("llama", contents);
  const uint64_t before = objects_.counters().bytes_received;
  PullOptions options;
  options.names = &names_;
  // The image that was pushed is still in this store, so the pull can link its units.
  auto report = Pull(repository_, "llama", local_.path(), "again", options);
  ASSERT_TRUE(report) << report.error().ToString();
  EXPECT_EQ(report->shared_bytes, contents.gpu.size() + contents.pages.size());
  EXPECT_LT(objects_.counters().bytes_received - before, 100'000u);  // files and records only
  EXPECT_TRUE(testing::ReadImage(report->path) == contents);
}

TEST_F(PullTest, WithAnotherNamingKeyRenamesUnitsAndSharesThemWithLocalImages) {
  Contents contents = MakeContents(1);
  contents.gpu += contents.gpu.substr(0, size_t{2} * testing::kTestBlock);  // a repetition
  MustPush("llama", contents);
  const auto local_names = NamesOf(9);
  TempStore other;
  WriteImage(other.path(), "earlier", MakeContents(1, 40, 0), local_names);
  auto report = PullImage("llama", other.path(), local_names);
  ASSERT_TRUE(report) << report.error().ToString();
  EXPECT_EQ(report->shared_bytes, MakeContents(1).gpu.size());
  EXPECT_TRUE(testing::ReadImage(report->path) == contents);
  EXPECT_EQ((*store::ImageReader::Open(report->path))->manifest().unit_naming->key_id,
            local_names.key().id());
}

TEST_F(PullTest, OfAnImageWithoutGpuMemory) {
  Contents contents = MakeContents(1, 0, 10);
  MustPush("llama", contents);
  ExpectPulls("llama", contents);
}

TEST_F(PullTest, ContinuesATransferAtTheStartOfAUnit) {
  MustPush("llama", MakeContents(1));
  objects_.set_piece_bytes(1000);
  objects_.BreakTransfers(5, 20'000);
  ExpectPulls("llama", MakeContents(1));
  EXPECT_GT(objects_.counters().retries, 0u);
}

TEST_F(PullTest, RefusesAMissingImage) {
  EXPECT_THAT(ErrorOfPull(Code::kNotFound), ::testing::HasSubstr("has no image llama"));
}

TEST_F(PullTest, RefusesDamageAnywhere) {
  MustPush("llama", MakeContents(1));
  for (const std::string& key : Keys()) {
    if (key == kRepoKey) continue;
    const std::string data = objects_.Objects()[key];
    for (size_t at = 0; at < data.size(); at += data.size() / 7 + 1) {
      Damage(key, at);
      // Without its names an image can still be read.
      if (key.ends_with(".names")) {
        ExpectPulls("llama", MakeContents(1));
      } else {
        EXPECT_THAT(ErrorOfPull(Code::kDataLoss), ::testing::HasSubstr(key.substr(0, 6)));
      }
      objects_.Overwrite(key, data);
    }
  }
  ExpectPulls("llama", MakeContents(1));
}

TEST_F(PullTest, RefusesACutOrMissingPack) {
  MustPush("llama", MakeContents(1));
  const std::string key = Keys("packs/")[0];
  const std::string data = objects_.Objects()[key];
  objects_.Overwrite(key, data.substr(0, data.size() - 1));
  EXPECT_THAT(ErrorOfPull(Code::kDataLoss), ::testing::HasSubstr("is shorter than its index says"));
  ASSERT_TRUE(objects_.Delete(key));
  EXPECT_THAT(ErrorOfPull(Code::kDataLoss), ::testing::HasSubstr("is missing"));
}

TEST_F(PullTest, RefusesTheRecordOfAnotherImage) {
  MustPush("llama", MakeContents(1));
  MustPush("other", MakeContents(2));
  objects_.Overwrite("images/llama", objects_.Objects()["images/other"]);
  EXPECT_THAT(ErrorOfPull(Code::kDataLoss), ::testing::HasSubstr("contains another object"));
}

TEST_F(PullTest, RefusesNamesThatDoNotMatchTheData) {
  // A wrong name would make later dumps share a unit with other contents.
  MustPush("llama", MakeContents(1));
  const auto key = ParseIndexKey(Keys("index/")[0]);
  auto index = repository_.ReadNames(key->push, {});
  ASSERT_TRUE(index);
  index->names[0].bytes[3] ^= 1;
  ASSERT_TRUE(repository_.Write(RecordKind::kNames, NamesKey(key->push), EncodeNames(*index), {}));
  EXPECT_THAT(ErrorOfPull(Code::kDataLoss), ::testing::HasSubstr("does not have the name"));
}

TEST_F(PullTest, ReadsNothingOfAnImageThatIsNotAccepted) {
  MustPush("llama", MakeContents(1));
  PullOptions options;
  options.names = &names_;
  std::string job;
  options.accept = [&](const store::Manifest& manifest) -> Status {
    job = manifest.job.id;
    return Fail(Code::kPermissionDenied, "not trusted");
  };
  TempStore other;
  const uint64_t before = objects_.counters().requests;
  const auto report = Pull(repository_, "llama", other.path(), "llama", options);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, Code::kPermissionDenied);
  EXPECT_EQ(job, "llama");
  EXPECT_EQ(objects_.counters().requests - before, 1u);
  EXPECT_THAT(*ListDir(other.path()), ::testing::IsEmpty());
}

TEST_F(PullTest, CanBeCancelled) {
  MustPush("llama", MakeContents(1));
  PullOptions options;
  options.names = &names_;
  options.progress = [](uint64_t, uint64_t) { return false; };
  TempStore other;
  const auto report = Pull(repository_, "llama", other.path(), "llama", options);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, Code::kCancelled);
  EXPECT_THAT(*ListDir(other.path()), ::testing::IsEmpty());
}

}  // namespace

}  // namespace stasis::repository
