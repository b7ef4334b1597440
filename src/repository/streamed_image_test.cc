#include "repository/streamed_image.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>

#include "repository/encrypted_sealing.h"
#include "repository/repository_testing.h"
#include "store/store_folder.h"

namespace stasis::repository {
namespace {

using testing::Contents;
using ::testing::IsEmpty;
using testing::MakeContents;
using testing::TempStore;

class StreamedImageTest : public testing::RepositoryTest {
 protected:
  StreamedImageTest() { options_.names = &names_; }

  Result<std::unique_ptr<StreamedImage>> Open(const std::string& name = "llama") {
    return StreamedImage::Open(repository_, name, store_.path(), options_);
  }
  // Reads the only range of the image.
  Status Read(
      const StreamedImage& image, std::string& memory,
      const std::function<bool()>& go_on = [] { return true; },
      std::optional<size_t> earlier_range = {}) {
    const size_t ranges[] = {0};
    const store::RangeOutput outputs[] = {{memory.data(), earlier_range}};
    const auto placed = [this](const store::UnitJobs::Place&, uint64_t bytes) -> Status {
      placed_ += bytes;
      return {};
    };
    return image.ranges()->Read(ranges, outputs, placed, go_on);
  }

  TempStore store_;
  PullOptions options_;
  std::atomic<uint64_t> placed_{0};
};

// Returns contents with zero units and with equal units.
Contents WithRepetitions() {
  constexpr size_t kBlock = testing::kTestBlock;
  Contents contents = MakeContents(1);
  contents.gpu.replace(3 * kBlock, 9 * kBlock, 9 * kBlock, '\0');
  contents.gpu.replace(20 * kBlock, kBlock, contents.gpu.substr(0, kBlock));
  contents.gpu.resize(contents.gpu.size() - 100);
  return contents;
}

TEST_F(StreamedImageTest, TheMemoryGoesToItsPlace) {
  const Contents contents = WithRepetitions();
  for (const auto codec : {store::Codec::kNone, store::Codec::kLz4}) {
    const std::string name = std::string("llama-") + store::CodecName(codec);
    const std::string path = testing::WriteImage(local_.path(), name, contents, names_);
    const auto local = store::ImageReader::Open(path);
    ASSERT_TRUE(local);
    PushOptions push = testing::PushWith(names_);
    push.codec = codec;
    ASSERT_TRUE(Push(repository_, **local, name, push));
    const auto image = Open(name);
    ASSERT_TRUE(image) << image.error().ToString();
    std::string memory(contents.gpu.size(), 'x');
    placed_ = 0;
    const Status read = Read(**image, memory);
    ASSERT_TRUE(read) << read.error().ToString();
    EXPECT_TRUE(memory == contents.gpu);
    EXPECT_EQ(placed_, contents.gpu.size());
  }
}

// An interrupted unit is read and opened again from its start. Complete units are not.
TEST_F(StreamedImageTest, ATransferMayBreakOffWithinAUnit) {
  constexpr int kBreaks = 4;
  const Contents contents = MakeContents(1);
  const std::string path = testing::WriteImage(local_.path(), "llama", contents, names_);
  const auto local = store::ImageReader::Open(path);
  ASSERT_TRUE(local);
  const auto encrypted = EncryptedSealing(*MasterKey::Random());
  for (const Sealing* sealing : {sealing_.get(), encrypted.get()}) {
    testing::MemoryStore objects;
    const Repository repository = testing::MustCreate(objects, *sealing);
    ASSERT_TRUE(Push(repository, **local, "llama", testing::PushWith(names_)));
    const auto image = StreamedImage::Open(repository, "llama", store_.path(), options_);
    ASSERT_TRUE(image) << image.error().ToString();
    objects.set_piece_bytes(3000);
    objects.BreakTransfers(kBreaks, testing::kTestBlock + 5000);
    std::string memory(contents.gpu.size(), 'x');
    placed_ = 0;
    const Status read = Read(**image, memory);
    ASSERT_TRUE(read) << read.error().ToString();
    EXPECT_EQ(objects.counters().retries, uint64_t{kBreaks});
    EXPECT_TRUE(memory == contents.gpu);
    EXPECT_EQ(placed_, contents.gpu.size());
  }
}

TEST_F(StreamedImageTest, UnitsOfTheEarlierImageAreNotReadAgain) {
  constexpr size_t kBlock = testing::kTestBlock;
  const Contents earlier = WithRepetitions();
  Contents now = earlier;
  now.gpu.replace(0, kBlock, kBlock, '\0');
  now.gpu.replace(5 * kBlock, kBlock, testing::Noise(kBlock, 5));  // was zero
  now.gpu.replace(30 * kBlock, kBlock, testing::Noise(kBlock, 30));
  now.gpu.replace(31 * kBlock, kBlock, earlier.gpu.substr(32 * kBlock, kBlock));
  MustPush("earlier", earlier);
  MustPush("now", now);
  const auto image = Open("now");
  ASSERT_TRUE(image) << image.error().ToString();
  auto record = repository_.ReadImage("earlier", {});
  ASSERT_TRUE(record);
  (*image)->SetEarlier(std::make_shared<const ImageRecord>(*record));
  for (const auto earlier_range : {std::optional<size_t>(0), std::optional<size_t>()}) {
    std::string memory = earlier.gpu;
    // Two blocks that have not changed, one with data and one with zeros, are damaged in memory.
    // They stay damaged if the memory has the earlier image, and are read otherwise.
    std::string expected = now.gpu;
    for (const size_t block : {8, 25}) {
      memory[block * kBlock] = static_cast<char>(~memory[block * kBlock]);
      if (earlier_range) expected[block * kBlock] = memory[block * kBlock];
    }
    placed_ = 0;
    const Status read = Read(
        **image, memory, [] { return true; }, earlier_range);
    ASSERT_TRUE(read) << read.error().ToString();
    EXPECT_TRUE(memory == expected) << earlier_range.has_value();
    EXPECT_EQ(placed_, now.gpu.size());
  }
}

// A range of another size at the same address is another allocation, with other units.
TEST_F(StreamedImageTest, ARangeOfAnotherSizeIsReadWhole) {
  const Contents now = WithRepetitions();
  Contents earlier = now;
  earlier.gpu.resize(earlier.gpu.size() - testing::kTestBlock);
  MustPush("earlier", earlier);
  MustPush("now", now);
  const auto image = Open("now");
  ASSERT_TRUE(image) << image.error().ToString();
  auto record = repository_.ReadImage("earlier", {});
  ASSERT_TRUE(record);
  (*image)->SetEarlier(std::make_shared<const ImageRecord>(*record));
  std::string memory(now.gpu.size(), 'x');
  ASSERT_TRUE(Read(
      **image, memory, [] { return true; }, 0));
  EXPECT_TRUE(memory == now.gpu);
}

// Several allocations that are mapped nowhere have the address 0.
TEST_F(StreamedImageTest, RangesOfOneAddressAreNotConfused) {
  const Contents now = WithRepetitions();
  MustPush("now", now);
  const auto image = Open("now");
  ASSERT_TRUE(image) << image.error().ToString();
  auto earlier = repository_.ReadImage("now", {});
  ASSERT_TRUE(earlier);
  // The second range of the earlier image differs from the first one only in its bytes, all zero.
  auto& ranges = earlier->manifest.ranges;
  ranges.push_back(ranges[0]);
  const auto blocks = static_cast<uint32_t>(SequencesOf(earlier->manifest)[0].units());
  earlier->sequences.insert(earlier->sequences.begin() + 1, {{StoredRun::kZeros, 0, blocks}});
  (*image)->SetEarlier(std::make_shared<const ImageRecord>(*earlier));
  std::string memory(now.gpu.size(), '\0');
  ASSERT_TRUE(Read(
      **image, memory, [] { return true; }, 1));
  EXPECT_TRUE(memory == now.gpu);
}

TEST_F(StreamedImageTest, TheRestIsInAHiddenFolderThatIsRemoved) {
  MustPush("llama", MakeContents(1));
  {
    const auto image = Open();
    ASSERT_TRUE(image) << image.error().ToString();
    EXPECT_THAT(*store::ListImages(store_.path()), IsEmpty());
    EXPECT_EQ(ListDir(store_.path())->size(), 1u);
    EXPECT_THAT(*store::SweepPartials(store_.path()), IsEmpty()) << "it is in use";
    const auto reader = store::ImageReader::OpenWithoutRanges((*image)->path());
    ASSERT_TRUE(reader) << reader.error().ToString();
    EXPECT_TRUE((*reader)->Verify(store::VerifyLevel::kFull)->ok());
    EXPECT_EQ((*reader)->manifest().ranges.size(), 1u);
  }
  EXPECT_THAT(*ListDir(store_.path()), IsEmpty());
}

// Another reader would read the ranges of this image as zeros.
TEST_F(StreamedImageTest, NothingElseOpensIt) {
  MustPush("llama", MakeContents(1));
  const auto image = Open();
  ASSERT_TRUE(image);
  const auto reader = store::ImageReader::Open((*image)->path());
  ASSERT_FALSE(reader);
  EXPECT_EQ(reader.error().code, Code::kFailedPrecondition);
}

TEST_F(StreamedImageTest, DamageIsNoticed) {
  MustPush("llama", MakeContents(1));
  const auto image = Open();
  ASSERT_TRUE(image);
  for (const std::string& key : Keys("packs/")) {
    std::string data = objects_.Objects()[key];
    data[data.size() / 2] = static_cast<char>(data[data.size() / 2] ^ 1);
    objects_.Overwrite(key, data);
  }
  std::string memory(MakeContents(1).gpu.size(), 'x');
  const Status read = Read(**image, memory);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, Code::kDataLoss) << read.error().ToString();
}

TEST_F(StreamedImageTest, AMissingPackIsNoticed) {
  MustPush("llama", MakeContents(1));
  const auto image = Open();
  ASSERT_TRUE(image);
  for (const std::string& key : Keys("packs/")) ASSERT_TRUE(objects_.Delete(key));
  std::string memory(MakeContents(1).gpu.size(), 'x');
  EXPECT_EQ(Read(**image, memory).error().code, Code::kDataLoss);
}

// The record is read twice. The second answer determines how much is written to the arenas, so it
// must not differ from the first one.
TEST_F(StreamedImageTest, AServerThatGivesTwoAnswersIsRefused) {
  MustPush("llama", MakeContents(1));
  auto record = repository_.ReadImage("llama", {});
  ASSERT_TRUE(record);
  const std::string honest = objects_.Objects()["images/llama"];
  store::DeviceRange& range = record->manifest.ranges[0];
  range.size_bytes -= testing::kTestBlock;
  range.runs = {
      {store::UnitRun::kZeros, 0, static_cast<uint32_t>(range.size_bytes / range.block_bytes)}};
  record->sequences[0] = {{StoredRun::kZeros, 0, range.runs[0].units}};
  auto body = EncodeImage(*record);
  ASSERT_TRUE(body) << body.error().ToString();
  ASSERT_TRUE(repository_.Write(RecordKind::kImage, "images/llama", *body, {}));
  const std::string other = objects_.Objects()["images/llama"];
  objects_.Overwrite("images/llama", honest);
  int reads = 0;
  objects_.set_hook([&](testing::Method method, const std::string& key) -> Status {
    if (method == testing::Method::kGet && key == "images/llama" && ++reads == 2) {
      objects_.Overwrite(key, other);
    }
    return {};
  });
  const auto image = Open();
  ASSERT_FALSE(image);
  EXPECT_EQ(image.error().code, Code::kAborted) << image.error().ToString();
  EXPECT_THAT(*ListDir(store_.path()), IsEmpty());
}

TEST_F(StreamedImageTest, ItIsCancelled) {
  MustPush("llama", MakeContents(1));
  const auto image = Open();
  ASSERT_TRUE(image);
  std::string memory(MakeContents(1).gpu.size(), 'x');
  const Status read = Read(**image, memory, [] { return false; });
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, Code::kCancelled);
}

TEST_F(StreamedImageTest, AFailedPullLeavesNothing) {
  MustPush("llama", MakeContents(1));
  EXPECT_EQ(Open("none").error().code, Code::kNotFound);
  for (const std::string& key : Keys("packs/")) ASSERT_TRUE(objects_.Delete(key));
  EXPECT_EQ(Open().error().code, Code::kDataLoss);
  EXPECT_THAT(*ListDir(store_.path()), IsEmpty());
}

}  // namespace
}  // namespace stasis::repository
