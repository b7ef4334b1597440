#include "repository/images.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "repository/record_clock.h"
#include "repository/repository_testing.h"

namespace stasis::repository {

namespace {

using testing::Contents;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::MakeContents;
using testing::MemoryStore;
using testing::NamesOf;

class ImagesTest : public testing::RepositoryTest {
 protected:
  VerifyReport MustVerify(const std::string& name, const VerifyOptions& options = {}) {
    auto report = VerifyImage(repository_, name, options);
    EXPECT_TRUE(report) << report.error().ToString();
    return report ? *report : VerifyReport{};
  }
};

TEST_F(ImagesTest, AreListedByName) {
  MustPush("b", MakeContents(1));
  MustPush("a", MakeContents(2));
  objects_.Overwrite("images/c", "damaged");
  const auto images = ListImages(repository_);
  ASSERT_TRUE(images);
  ASSERT_EQ(images->size(), 3u);
  EXPECT_EQ((*images)[0].name, "a");
  EXPECT_EQ((*images)[1].name, "b");
  EXPECT_EQ((*images)[1].job, "llama");
  EXPECT_EQ((*images)[1].packs, 1u);
  EXPECT_EQ((*images)[1].memory_bytes, MakeContents(1).gpu.size() + MakeContents(1).pages.size());
  EXPECT_FALSE((*images)[1].error);
  EXPECT_TRUE((*images)[2].error);
}

TEST_F(ImagesTest, AreListedInManyPages) {
  MustPush("a", MakeContents(1));
  const std::string record = objects_.Objects()["images/a"];
  for (int i = 0; i < 1100; ++i) objects_.Overwrite("images/x" + std::to_string(i), "x");
  EXPECT_EQ(ListImages(repository_)->size(), 1101u);
}

TEST_F(ImagesTest, AreVerified) {
  MustPush("llama", MakeContents(1));
  const VerifyReport report = MustVerify("llama");
  EXPECT_THAT(report.findings, IsEmpty());
  EXPECT_GE(report.bytes, MakeContents(1).gpu.size());
  EXPECT_EQ(VerifyImage(repository_, "other").error().code, Code::kNotFound);
}

TEST_F(ImagesTest, AreVerifiedUnitByUnit) {
  MustPush("llama", MakeContents(1));
  const std::string key = Keys("packs/")[0];
  std::string pack = objects_.Objects()[key];
  pack[pack.size() / 2] ^= 1;
  objects_.Overwrite(key, pack);
  EXPECT_THAT(MustVerify("llama").findings, ElementsAre(HasSubstr("is damaged")));
  VerifyOptions quick;
  quick.reads_units = false;
  EXPECT_THAT(MustVerify("llama", quick).findings, IsEmpty());
  objects_.Overwrite(key, pack.substr(1));
  EXPECT_THAT(MustVerify("llama", quick).findings, ElementsAre(HasSubstr("bytes instead of")));
  ASSERT_TRUE(objects_.Delete(key));
  EXPECT_THAT(MustVerify("llama", quick).findings, ElementsAre(HasSubstr("is missing")));
}

TEST_F(ImagesTest, AreVerifiedByTheNamesOfUnits) {
  MustPush("llama", MakeContents(1));
  const auto key = ParseIndexKey(Keys("index/")[0]);
  auto index = repository_.ReadNames(key->push, {});
  ASSERT_TRUE(index);
  for (Id128& name : index->names) name.bytes[3] ^= 1;
  ASSERT_TRUE(repository_.Write(RecordKind::kNames, NamesKey(key->push), EncodeNames(*index), {}));
  VerifyOptions options;
  options.names = &names_;
  EXPECT_THAT(MustVerify("llama", options).findings,
              ::testing::Contains(HasSubstr("does not have the name")));
  const auto others = NamesOf(9);  // names by another key cannot be compared
  options.names = &others;
  EXPECT_THAT(MustVerify("llama", options).findings, IsEmpty());
}

TEST_F(ImagesTest, AreVerifiedByTheChecksumsOfFiles) {
  Contents contents = MakeContents(1);
  const uint64_t chunk = store::kChunkBytes;
  contents.files["cpu/holes.img"] = std::string(chunk + 70'000, '\0') + "x";
  contents.files["cpu/large.img"] =
      std::string(chunk, 'a') + std::string(chunk, 'b') + "tail" + std::string(70'000, '\0');
  MustPush("llama", contents);
  EXPECT_THAT(MustVerify("llama").findings, IsEmpty());
  auto record = repository_.ReadImage("llama", {});
  ASSERT_TRUE(record);
  for (store::File& file : record->manifest.files) {
    if (file.path == "cpu/large.img") file.checksums[1].bytes[0] ^= 1;
  }
  const auto body = EncodeImage(*record);
  ASSERT_TRUE(body) << body.error().ToString();
  ASSERT_TRUE(repository_.Write(RecordKind::kImage, ImageKey("llama"), *body, {}));
  EXPECT_THAT(MustVerify("llama").findings,
              ElementsAre(HasSubstr("file cpu/large.img does not have the checksum")));
}

TEST_F(ImagesTest, ThatAreTooOldAreFound) {
  const int64_t before = UnixNowNs();
  MustPush("llama", MakeContents(1));
  VerifyOptions options;
  options.not_before_unix_ns = before;
  EXPECT_THAT(MustVerify("llama", options).findings, IsEmpty());
  options.not_before_unix_ns = UnixNowNs() + 1'000'000'000;
  EXPECT_THAT(MustVerify("llama", options).findings, ElementsAre(HasSubstr("earlier image")));
}

TEST_F(ImagesTest, AreDeletedByOneRequest) {
  MustPush("llama", MakeContents(1));
  MustPush("llama2", MakeContents(1));
  ASSERT_TRUE(DeleteImage(repository_, "llama"));
  EXPECT_THAT(Keys("images/"), ElementsAre("images/llama2"));
  EXPECT_EQ(DeleteImage(repository_, "llama").error().code, Code::kNotFound);
  EXPECT_EQ(DeleteImage(repository_, "../x").error().code, Code::kInvalidArgument);
}

TEST(Repositories, AreCreatedOnceAndOnlyWhereNothingIs) {
  MemoryStore objects;
  EXPECT_EQ(ReadRepositoryInfo(objects).error().code, Code::kNotFound);
  ASSERT_TRUE(CreateRepository(objects, true, "parameters"));
  EXPECT_EQ(ReadRepositoryInfo(objects)->parameters, "parameters");
  EXPECT_TRUE(ReadRepositoryInfo(objects)->is_sealed);
  EXPECT_EQ(CreateRepository(objects, true, "").error().code, Code::kAlreadyExists);
  MemoryStore other;
  other.Overwrite("holiday.jpg", "x");
  EXPECT_EQ(CreateRepository(other, true, "").error().code, Code::kInvalidArgument);
}

TEST(Repositories, RejectTheRecordsOfOtherRepositories) {
  MemoryStore objects, other_objects;
  const auto sealing = PlainSealing();
  const Repository repository = testing::MustCreate(objects, *sealing);
  const Repository other = testing::MustCreate(other_objects, *sealing);
  const PushId push = *PushId::Random();
  ASSERT_TRUE(other.Write(RecordKind::kPending, PendingKey(push), EncodePending({}), {}));
  objects.Overwrite(PendingKey(push), other_objects.Objects()[PendingKey(push)]);
  const auto read = repository.ReadPending(push, {});
  ASSERT_FALSE(read);
  EXPECT_THAT(read.error().message, HasSubstr("another repository"));
}

}  // namespace

}  // namespace stasis::repository
