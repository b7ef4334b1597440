#include "repository/push.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "repository/repository_testing.h"

namespace stasis::repository {

namespace {

using testing::Contents;
using testing::MakeContents;
using testing::Method;
using testing::NamesOf;
using testing::Noise;
using testing::PushWith;
using testing::TempStore;

class PushTest : public testing::RepositoryTest {};

TEST_F(PushTest, ThenPullGivesTheSameImage) {
  Contents contents = MakeContents(1);
  contents.gpu.replace(size_t{3} * testing::kTestBlock, testing::kTestBlock, testing::kTestBlock,
                       '\0');
  contents.gpu.resize(contents.gpu.size() - 100);  // a short last block
  const size_t two_pages = size_t{2} * store::kPageBytes;
  contents.pages.replace(0, two_pages, two_pages, '\0');
  const PushReport report = MustPush("llama", contents);
  EXPECT_EQ(report.known_bytes, 0u);
  EXPECT_EQ(report.packs, 1u);
  EXPECT_EQ(report.repairs, 0u);
  ExpectPulls("llama", contents);
}

TEST_F(PushTest, LeavesOnlyPacksIndexesAndTheImage) {
  MustPush("llama", MakeContents(1));
  EXPECT_EQ(Keys("packs/").size(), 1u);
  EXPECT_EQ(Keys("index/").size(), 2u);
  EXPECT_THAT(Keys("images/"), ::testing::ElementsAre("images/llama"));
  EXPECT_EQ(Keys().size(), 5u);  // the four above and `repo`
}

TEST_F(PushTest, UploadsOnlyWhatIsNew) {
  Contents contents = MakeContents(1);
  MustPush("first", contents);
  contents.gpu.replace(0, testing::kTestBlock, Noise(testing::kTestBlock, 5));
  contents.pages.replace(store::kPageBytes, store::kPageBytes, Noise(store::kPageBytes, 6));
  const PushReport second = MustPush("second", contents);
  EXPECT_EQ(second.new_bytes, testing::kTestBlock + store::kPageBytes);
  EXPECT_LT(second.sent_bytes, 40'000u);
  // The push writes the pending record, the pack, the places, the names and the image. It also
  // makes one deletion, nine lists and three reads.
  EXPECT_EQ(second.requests, 18u);
  ExpectPulls("first", MakeContents(1));
  ExpectPulls("second", contents);
}

TEST_F(PushTest, OfAnEqualImageUploadsNoUnits) {
  MustPush("first", MakeContents(1));
  const PushReport second = MustPush("second", MakeContents(1));
  EXPECT_EQ(second.new_bytes, 0u);
  EXPECT_EQ(second.packs, 0u);
  EXPECT_EQ(Keys("packs/").size(), 1u);
  EXPECT_EQ(Keys("index/").size(), 2u);
  ExpectPulls("second", MakeContents(1));
}

TEST_F(PushTest, OfAnotherHostSharesUnitsIfTheNamesAreComputedWithTheRepositorysSecret) {
  const Contents contents = MakeContents(1);
  MustPush("first", contents);
  // The other host's image has unit names that were made with another secret.
  const std::string path = WriteImage(local_.path(), "other", contents, NamesOf(9));
  auto image = store::ImageReader::Open(path);
  auto report = Push(repository_, **image, "other", PushWith(names_));
  ASSERT_TRUE(report) << report.error().ToString();
  EXPECT_EQ(report->new_bytes, 0u);
  // With names made with another secret, no unit of the repository is recognised.
  const auto foreign = NamesOf(9);
  report = Push(repository_, **image, "third", PushWith(foreign));
  ASSERT_TRUE(report) << report.error().ToString();
  EXPECT_EQ(report->known_bytes, 0u);
  ExpectPulls("third", contents);
}

TEST_F(PushTest, DoesNotRelyOnAPackOfWhichLittleIsNeeded) {
  const Contents big = MakeContents(1);
  MustPush("big", big);
  Contents small = MakeContents(2, 1, 1);
  small.gpu = big.gpu.substr(0, testing::kTestBlock);
  ASSERT_TRUE(DeleteImage(repository_, "big"));
  const PushReport report = MustPush("small", small);
  EXPECT_GE(report.new_bytes, testing::kTestBlock);
  MustCollectAll();
  EXPECT_EQ(Keys("packs/").size(), 1u);
  ExpectPulls("small", small);
}

TEST_F(PushTest, CompressesUnits) {
  Contents contents = MakeContents(1);
  for (size_t i = 0; i < contents.gpu.size(); i += 2) contents.gpu[i] = 'a';
  const std::string path = WriteImage(local_.path(), "llama", contents, names_);
  auto image = store::ImageReader::Open(path);
  PushOptions options = PushWith(names_);
  options.codec = store::Codec::kZstd;
  auto report = Push(repository_, **image, "llama", options);
  ASSERT_TRUE(report) << report.error().ToString();
  EXPECT_LT(report->sent_bytes, report->new_bytes * 9 / 10);
  ExpectPulls("llama", contents);
}

TEST_F(PushTest, NeverOverwrites) {
  MustPush("llama", MakeContents(1));
  TempStore other;
  const std::string path = WriteImage(other.path(), "llama", MakeContents(2), names_);
  auto image = store::ImageReader::Open(path);
  const auto report = Push(repository_, **image, "llama", PushWith(names_));
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, Code::kAlreadyExists);
  ExpectPulls("llama", MakeContents(1));
}

// The answer to the last request may have been lost.
TEST_F(PushTest, OfTheSameImageCanBeRepeated) {
  const std::string path = WriteImage(local_.path(), "llama", MakeContents(1), names_);
  auto image = store::ImageReader::Open(path);
  objects_.set_hook([&](Method method, const std::string& key) -> Status {
    return method == Method::kDelete && key.starts_with("pending/")
               ? Status(Fail(Code::kUnavailable, "lost"))
               : Status();
  });
  ASSERT_TRUE(Push(repository_, **image, "llama", PushWith(names_)));
  objects_.set_hook(nullptr);
  const auto again = Push(repository_, **image, "llama", PushWith(names_));
  ASSERT_TRUE(again) << again.error().ToString();
  EXPECT_EQ(again->new_bytes, 0u);
  EXPECT_THAT(again->notes, ::testing::SizeIs(1));
}

TEST_F(PushTest, NoticesThatAnotherPushReplacedTheImage) {
  TempStore other;
  const std::string theirs = WriteImage(other.path(), "llama", MakeContents(2), names_);
  ASSERT_TRUE(Push(repository_, **store::ImageReader::Open(theirs), "llama", PushWith(names_)));
  const std::string record = objects_.Objects()["images/llama"];
  ASSERT_TRUE(DeleteImage(repository_, "llama"));
  const std::string path = WriteImage(local_.path(), "llama", MakeContents(1), names_);
  auto image = store::ImageReader::Open(path);
  // Another push publishes right after this one.
  bool published = false;
  objects_.set_hook([&](Method method, const std::string& key) -> Status {
    if (method == Method::kPut && key == "images/llama") published = true;
    if (method == Method::kGet && key == "images/llama" && published) {
      objects_.Overwrite(key, record);
    }
    return {};
  });
  const auto report = Push(repository_, **image, "llama", PushWith(names_));
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, Code::kAborted) << report.error().ToString();
}

TEST_F(PushTest, DoesNotRelyOnAPackThatWasCutOff) {
  MustPush("first", MakeContents(1));
  for (const std::string& key : Keys("packs/")) objects_.Overwrite(key, "cut off");
  const PushReport report = MustPush("second", MakeContents(1));
  EXPECT_EQ(report.known_bytes, 0u);
  ExpectPulls("second", MakeContents(1));
}

TEST_F(PushTest, EndsInTheMiddleOfARequest) {
  const std::string path = WriteImage(local_.path(), "llama", MakeContents(1), names_);
  auto image = store::ImageReader::Open(path);
  std::stop_source stop;
  PushOptions options = PushWith(names_);
  options.stop = stop.get_token();
  stop.request_stop();
  const auto report = Push(repository_, **image, "llama", options);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, Code::kCancelled);
}

TEST_F(PushTest, RefusesADamagedImage) {
  const std::string path = WriteImage(local_.path(), "llama", MakeContents(1), names_);
  const std::string pack = path + "/packs/" + (*ListDir(path + "/packs"))[0];
  auto fd = Open(pack, O_RDWR);
  ASSERT_EQ(::pwrite(fd->get(), "damage", 6, 4096), 6);
  auto image = store::ImageReader::Open(path);
  const auto report = Push(repository_, **image, "llama", PushWith(names_));
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, Code::kDataLoss);
  EXPECT_THAT(Keys("images/"), ::testing::IsEmpty());
  EXPECT_THAT(Keys("pending/"), ::testing::IsEmpty());
}

TEST_F(PushTest, RefusesNamesThatDoNotMatchTheData) {
  // The image claims that its units' names were made with the repository's secret.
  const std::string path = WriteImage(local_.path(), "llama", MakeContents(1), NamesOf(9), {},
                                      std::nullopt, names_.key().id());
  auto image = store::ImageReader::Open(path);
  PushOptions options = PushWith(names_);
  auto report = Push(repository_, **image, "llama", options);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, Code::kDataLoss);
  options.trusts_index = false;  // names are computed
  report = Push(repository_, **image, "llama", options);
  ASSERT_TRUE(report) << report.error().ToString();
  ExpectPulls("llama", MakeContents(1));
}

TEST_F(PushTest, CanBeCancelled) {
  const std::string path = WriteImage(local_.path(), "llama", MakeContents(1), names_);
  auto image = store::ImageReader::Open(path);
  PushOptions options = PushWith(names_);
  options.progress = [](uint64_t, uint64_t) { return false; };
  const auto report = Push(repository_, **image, "llama", options);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, Code::kCancelled);
  EXPECT_THAT(Keys("images/"), ::testing::IsEmpty());
  EXPECT_THAT(Keys("pending/"), ::testing::IsEmpty());
}

TEST_F(PushTest, UploadsAgainWhatAGcDeletesMeanwhile) {
  MustPush("first", MakeContents(1));
  ASSERT_TRUE(DeleteImage(repository_, "first"));
  const std::string path = WriteImage(local_.path(), "second", MakeContents(1), names_);
  auto image = store::ImageReader::Open(path);
  bool collected = false;
  objects_.set_hook([&](Method method, const std::string& key) -> Status {
    if (method != Method::kPut || !key.starts_with("pending/") || collected) return {};
    collected = true;  // the push has looked for units, but has not written its pending record
    EXPECT_TRUE(CollectGarbage(repository_));
    return {};
  });
  auto report = Push(repository_, **image, "second", PushWith(names_));
  objects_.set_hook(nullptr);
  ASSERT_TRUE(report) << report.error().ToString();
  EXPECT_TRUE(collected);
  EXPECT_EQ(report->repairs, 1u);
  ExpectPulls("second", MakeContents(1));
}

TEST_F(PushTest, UploadsAgainWhatAGcHasCondemned) {
  MustPush("first", MakeContents(1));
  ASSERT_TRUE(DeleteImage(repository_, "first"));
  const std::string path = WriteImage(local_.path(), "second", MakeContents(1), names_);
  auto image = store::ImageReader::Open(path);
  const std::string pack = Keys("packs/")[0];
  bool condemned = false;
  objects_.set_hook([&](Method method, const std::string& key) -> Status {
    if (method != Method::kPut || !key.starts_with("pending/") || condemned) return {};
    condemned = true;
    Condemned record{0, {*ParsePackKey(pack)}, {}};
    return repository_.Write(RecordKind::kCondemned, CondemnedKey(PushId()),
                             EncodeCondemned(record), {});
  });
  auto report = Push(repository_, **image, "second", PushWith(names_));
  objects_.set_hook(nullptr);
  ASSERT_TRUE(report) << report.error().ToString();
  EXPECT_EQ(report->repairs, 1u);
  ASSERT_TRUE(objects_.Delete(pack));  // as the gc would do now
  ExpectPulls("second", MakeContents(1));
}

TEST_F(PushTest, WritesItsPendingRecordAgainBeforeItIsTooOld) {
  const std::string path = WriteImage(local_.path(), "llama", MakeContents(1), names_);
  auto image = store::ImageReader::Open(path);
  PushOptions options = PushWith(names_);
  options.record_valid = std::chrono::nanoseconds(0);  // always too old
  size_t written = 0;
  objects_.set_hook([&](Method method, const std::string& key) -> Status {
    written += method == Method::kPut && key.starts_with("pending/") ? 1 : 0;
    return {};
  });
  const auto report = Push(repository_, **image, "llama", options);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, Code::kUnavailable);
  EXPECT_GT(written, 2u);
  EXPECT_THAT(Keys("images/"), ::testing::IsEmpty());
}

TEST_F(PushTest, KeepsItsPendingRecordIfItIsUnknownWhetherTheImageExists) {
  const std::string path = WriteImage(local_.path(), "llama", MakeContents(1), names_);
  auto image = store::ImageReader::Open(path);
  objects_.set_hook([&](Method method, const std::string& key) -> Status {
    if (method != Method::kPut || !key.starts_with("images/")) return {};
    return Fail(Code::kUnavailable, "the connection broke");
  });
  const auto report = Push(repository_, **image, "llama", PushWith(names_));
  objects_.set_hook(nullptr);
  ASSERT_FALSE(report);
  EXPECT_THAT(report.error().ToString(), ::testing::HasSubstr("may exist or not"));
  EXPECT_EQ(Keys("pending/").size(), 1u);
  EXPECT_EQ(MustCollect().deleted_packs, 0u);
}

}  // namespace

}  // namespace stasis::repository
