#include "store/image_reference.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/image_reader.h"
#include "store/image_testing.h"

namespace stasis::store {
namespace {

using testing::MustBegin;
using testing::PretendCriuDump;
using testing::TempStore;
using testing::WriteFile;

class ImageReferenceTest : public ::testing::Test {
 protected:
  ImageReferenceTest() {
    auto writer = MustBegin(store_.path(), "one");
    PretendCriuDump(*writer);
    Manifest manifest = testing::FullManifest();
    EXPECT_TRUE(writer->Commit(manifest, {}));
    image_ = {writer->path(), manifest.image_id};
    EXPECT_TRUE(WriteReference(folder(), image_));
  }
  std::string folder() const { return folder_ / "stasis"; }
  std::string file() const { return folder() + "/" + kReferenceName; }

  TempStore store_, folder_;
  ImageReference image_;
};

TEST_F(ImageReferenceTest, FindsTheImage) {
  EXPECT_EQ(FollowReference(folder_.path(), "/no/store").value_or(""), folder_.path());
  auto found = FollowReference(folder(), "/no/store");
  ASSERT_TRUE(found) << found.error().ToString();
  EXPECT_EQ(*found, image_.image);
}

TEST_F(ImageReferenceTest, FindsTheImageInTheStoreOfAnotherMachine) {
  TempStore other;
  ASSERT_EQ(::rename(image_.image.c_str(), (other / "one").c_str()), 0);
  auto found = FollowReference(folder(), other.path());
  ASSERT_TRUE(found) << found.error().ToString();
  EXPECT_EQ(*found, other / "one");
}

TEST_F(ImageReferenceTest, NamesAMissingImage) {
  ASSERT_TRUE(RemoveTree(image_.image));
  auto found = FollowReference(folder(), "/no/store");
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, Code::kNotFound);
  EXPECT_NE(found.error().message.find(image_.image), std::string::npos) << found.error().message;
}

TEST_F(ImageReferenceTest, RefusesAnotherImageOfTheSameName) {
  ASSERT_TRUE(Id128::Random());
  ASSERT_TRUE(WriteReference(folder(), {image_.image, *Id128::Random()}));
  auto found = FollowReference(folder(), store_.path());
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, Code::kNotFound) << found.error().ToString();
}

TEST_F(ImageReferenceTest, ReportsADamagedImage) {
  WriteFile(image_.image + "/manifest.pb", "garbage");
  auto found = FollowReference(folder(), store_.path());
  ASSERT_FALSE(found);
  EXPECT_NE(found.error().code, Code::kNotFound) << found.error().ToString();
}

TEST_F(ImageReferenceTest, RefusesADamagedFile) {
  const std::string id = image_.image_id.Hex();
  for (const std::string& text : {
           std::string(),
           std::string("{"),
           std::string("[]"),
           std::string("{}"),
           std::string(R"({"format":1})"),
           R"({"format":1,"image":"relative","image_id":")" + id + "\"}",
           R"({"format":1,"image":7,"image_id":")" + id + "\"}",
           R"({"format":1,"image":"/a\u0000b","image_id":")" + id + "\"}",
           R"({"format":1,"image":"/)" + std::string(2000, 'a') + R"(","image_id":")" + id + "\"}",
           R"({"format":1,"image":"/a","image_id":"12"})" + std::string(),
           R"({"format":"1","image":"/a","image_id":")" + id + "\"}",
           std::string(R"({"format":2})"),
           std::string(100000, ' '),
       }) {
    WriteFile(file(), text);
    auto found = FollowReference(folder(), store_.path());
    ASSERT_FALSE(found) << text;
    EXPECT_TRUE(found.error().code == Code::kDataLoss || found.error().code == Code::kUnimplemented)
        << text << found.error().ToString();
  }
  // A FIFO must not block, and a link must not lead out of the folder.
  ASSERT_EQ(::unlink(file().c_str()), 0);
  ASSERT_EQ(::mkfifo(file().c_str(), 0600), 0);
  EXPECT_FALSE(FollowReference(folder(), store_.path()));
  ASSERT_EQ(::unlink(file().c_str()), 0);
  ASSERT_EQ(::symlink("/etc/hostname", file().c_str()), 0);
  EXPECT_FALSE(FollowReference(folder(), store_.path()));
}

}  // namespace
}  // namespace stasis::store
