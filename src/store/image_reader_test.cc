#include "store/image_reader.h"

#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/checksum.h"
#include "base/little_endian.h"
#include "store/envelope.h"
#include "store/image_testing.h"
#include "store/manifest_codec.h"

namespace stasis::store {
namespace {

using testing::FullManifest;
using testing::MakeImage;
using testing::TempStore;
using testing::WriteFile;

class ReaderTest : public ::testing::Test {
 protected:
  ReaderTest() : path_(MakeImage(store_.path(), "a")) {}

  // Verifies an image and returns one line for each finding.
  std::string Findings(VerifyLevel level = VerifyLevel::kFull) {
    auto reader = ImageReader::Open(path_);
    if (!reader) return "open: " + reader.error().ToString();
    auto report = (*reader)->Verify(level);
    if (!report) return "verify: " + report.error().ToString();
    std::string lines;
    for (const Finding& finding : report->findings) {
      lines += finding.path + " " + finding.message + "\n";
    }
    return lines;
  }
  Error OpenError() {
    auto reader = ImageReader::Open(path_);
    return reader ? Error{Code::kOk} : reader.error();
  }

  TempStore store_;
  std::string path_;
};

TEST_F(ReaderTest, AnyByteOfTheManifestChangedIsFound) {
  std::string manifest = *ReadFile(path_ + "/manifest.pb");
  for (size_t i = 0; i < manifest.size(); ++i) {
    for (int flip : {0x01, 0x80, 0xff}) {
      std::string changed = manifest;
      changed[i] = static_cast<char>(changed[i] ^ flip);
      auto opened = OpenEnvelope(changed, "x");
      ASSERT_FALSE(opened) << "byte " << i;
      ASSERT_EQ(opened.error().code, Code::kDataLoss);
    }
  }
  manifest[manifest.size() / 2] ^= 1;
  WriteFile(path_ + "/manifest.pb", manifest);
  Error error = OpenError();
  EXPECT_EQ(error.code, Code::kDataLoss);
  EXPECT_EQ(error.domain, Domain::kImage);
  EXPECT_NE(error.message.find("manifest.pb is damaged"), std::string::npos);
  EXPECT_FALSE(error.hint.empty());
}

TEST_F(ReaderTest, AManifestOfAnyOtherLengthIsFound) {
  std::string manifest = *ReadFile(path_ + "/manifest.pb");
  for (size_t length = 0; length < manifest.size(); ++length) {
    auto opened = OpenEnvelope(manifest.substr(0, length), "x");
    ASSERT_FALSE(opened) << "cut to " << length;
    ASSERT_EQ(opened.error().code, Code::kDataLoss);
  }
  for (const std::string& more : {std::string(1, '\0'), std::string("x"), manifest}) {
    EXPECT_FALSE(OpenEnvelope(manifest + more, "x"));
  }
  WriteFile(path_ + "/manifest.pb", "");
  EXPECT_EQ(OpenError().code, Code::kDataLoss);
}

TEST_F(ReaderTest, ChangedBytesAreFoundAndTheirFileIsNamed) {
  for (const char* name : {"cpu/inventory.img", "cpu/pages-1.img", "log/criu-dump.log"}) {
    std::string file = path_ + "/" + name;
    std::string good = *ReadFile(file);
    // Changes every byte of a short file, and a thousand bytes of a long one.
    for (size_t i = 0; i < good.size(); i += 1 + good.size() / 1000) {
      std::string bad = good;
      bad[i] ^= 0x10;
      WriteFile(file, bad);
      std::string findings = Findings();
      ASSERT_EQ(findings.rfind(std::string(name) + " is damaged between byte 0 and ", 0), 0u)
          << "byte " << i << ": " << findings;
      ASSERT_EQ(Findings(VerifyLevel::kPresence), "");
    }
    WriteFile(file, good);
    ASSERT_EQ(Findings(), "");
  }
}

TEST_F(ReaderTest, OtherLengthsMissingAndAdditionalFilesAreFound) {
  std::string pages = path_ + "/cpu/pages-1.img";
  ASSERT_EQ(::truncate(pages.c_str(), 299'999), 0);
  EXPECT_EQ(Findings(VerifyLevel::kPresence),
            "cpu/pages-1.img is shorter than recorded: it has 299999 bytes instead of 300000\n");
  ASSERT_EQ(::truncate(pages.c_str(), 300'001), 0);
  EXPECT_EQ(Findings(VerifyLevel::kPresence),
            "cpu/pages-1.img is longer than recorded: it has 300001 bytes instead of 300000\n");
  ASSERT_EQ(::unlink(pages.c_str()), 0);
  EXPECT_EQ(Findings(VerifyLevel::kPresence), "cpu/pages-1.img is missing\n");

  WriteFile(path_ + "/cpu/core-9.img", "x");
  WriteFile(path_ + "/.hidden", "x");
  ASSERT_EQ(::mkdir((path_ + "/packs/more").c_str(), 0700), 0);
  EXPECT_EQ(Findings(VerifyLevel::kPresence),
            "cpu/pages-1.img is missing\n"
            ".hidden is not part of the image\n"
            "cpu/core-9.img is not part of the image\n"
            "packs/more is not part of the image\n");
  auto report = (*ImageReader::Open(path_))->Verify(VerifyLevel::kPresence);
  EXPECT_EQ(report->ToStatus("a").error().message,
            "image a is damaged: cpu/pages-1.img is missing; .hidden is not part of the image; "
            "cpu/core-9.img is not part of the image; and 1 more");
}

TEST_F(ReaderTest, FilesThatAreNotRegularAreFoundAndNeverFollowed) {
  std::string pages = path_ + "/cpu/pages-1.img";
  std::string copy = store_ / "elsewhere";
  ASSERT_EQ(::rename(pages.c_str(), copy.c_str()), 0);
  ASSERT_EQ(::symlink(copy.c_str(), pages.c_str()), 0);
  EXPECT_EQ(Findings(),
            "cpu/pages-1.img cannot be read: cpu/pages-1.img is a symbolic link, not a regular "
            "file\n");
  ASSERT_EQ(::unlink(pages.c_str()), 0);
  ASSERT_EQ(::mkfifo(pages.c_str(), 0600), 0);
  EXPECT_EQ(Findings(),
            "cpu/pages-1.img cannot be read: cpu/pages-1.img is a FIFO, not a regular file\n");

  // A link in place of a folder or of the manifest is rejected too.
  std::string cpu = path_ + "/cpu";
  ASSERT_EQ(::rename(cpu.c_str(), (store_ / "cpu").c_str()), 0);
  ASSERT_EQ(::symlink((store_ / "cpu").c_str(), cpu.c_str()), 0);
  EXPECT_NE(Findings().find("cpu is not part of the image\n"), std::string::npos);
  std::string manifest = path_ + "/manifest.pb";
  ASSERT_EQ(::rename(manifest.c_str(), copy.c_str()), 0);
  ASSERT_EQ(::symlink(copy.c_str(), manifest.c_str()), 0);
  EXPECT_EQ(OpenError().code, Code::kDataLoss);
}

TEST_F(ReaderTest, ALaterVersionIsToldFromDamage) {
  std::string manifest = *ReadFile(path_ + "/manifest.pb");
  auto reseal = [&](size_t offset, char value) {
    std::string changed = manifest.substr(0, manifest.size() - 16);
    changed[offset] = value;
    WriteFile(path_ + "/manifest.pb", changed + std::string(Checksum(changed).View()));
    return OpenError();
  };
  Error error = reseal(8, 7);
  EXPECT_EQ(error.code, Code::kUnimplemented);
  EXPECT_EQ(error.message, "image " + path_ + " has format 7; this Stasis reads format 1");
  EXPECT_EQ(error.hint, "Use a newer Stasis.");
  EXPECT_EQ(reseal(8, 0).code, Code::kUnimplemented);
  EXPECT_EQ(reseal(24, 8).code, Code::kUnimplemented);
  EXPECT_EQ(reseal(24, 4).code, Code::kInvalidArgument);  // known, but not used by this image
  EXPECT_EQ(reseal(24, 2).code, Code::kDataLoss);         // a MAC that is missing
  EXPECT_EQ(reseal(24, 1).code, Code::kInvalidArgument);  // known, but not used by this image
  EXPECT_EQ(reseal(12, 33).code, Code::kDataLoss);
  EXPECT_EQ(reseal(16, 1).code, Code::kDataLoss);
}

TEST_F(ReaderTest, FoldersThatAreNotImagesAreRefused) {
  auto none = ImageReader::Open(store_ / "nothing");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, Code::kNotFound);
  ASSERT_EQ(::mkdir((store_ / "folder").c_str(), 0700), 0);
  auto folder = ImageReader::Open(store_ / "folder");
  ASSERT_FALSE(folder);
  EXPECT_EQ(folder.error().code, Code::kInvalidArgument);
  EXPECT_NE(folder.error().message.find("is not a Stasis image"), std::string::npos);
  WriteFile(store_ / "file", "x");
  EXPECT_FALSE(ImageReader::Open(store_ / "file"));
  // A manifest with an enormous length is rejected without allocating memory.
  ASSERT_EQ(::truncate((path_ + "/manifest.pb").c_str(), off_t{1} << 40), 0);
  EXPECT_EQ(OpenError().code, Code::kDataLoss);
}

TEST_F(ReaderTest, CancellingStopsTheVerification) {
  auto report = (*ImageReader::Open(path_))->Verify(VerifyLevel::kFull, [](uint64_t, uint64_t) {
    return false;
  });
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, Code::kCancelled);
}

TEST_F(ReaderTest, DamageInALaterPieceIsPlacedThere) {
  auto writer = testing::MustBegin(store_.path(), "long");
  WriteFile(writer->cpu_path() + "/pages-1.img", "");
  std::string pages = writer->cpu_path() + "/pages-1.img";
  ASSERT_EQ(::truncate(pages.c_str(), 2 * off_t{kChunkBytes} + 5), 0);
  Manifest manifest = FullManifest();
  ASSERT_TRUE(writer->Commit(manifest, {}));
  path_ = writer->path();
  ASSERT_EQ(Findings(), "");
  auto fd = Open(path_ + "/cpu/pages-1.img", O_WRONLY);
  ASSERT_EQ(::pwrite(fd->get(), "x", 1, kChunkBytes), 1);
  EXPECT_EQ(Findings().rfind("cpu/pages-1.img is damaged between byte 16777216 and 33554432", 0),
            0u)
      << Findings();
}

TEST_F(ReaderTest, AFileIsOpenedOnlyWhenItIsListedAndAsLongAsItWas) {
  auto reader = ImageReader::Open(path_);
  EXPECT_TRUE((*reader)->OpenFile("cpu/pages-1.img"));
  EXPECT_TRUE((*reader)->OpenCpuFolder());
  EXPECT_EQ((*reader)->OpenFile("../a/cpu/pages-1.img").error().code, Code::kNotFound);
  ASSERT_EQ(::truncate((path_ + "/cpu/pages-1.img").c_str(), 3), 0);
  EXPECT_EQ((*reader)->OpenFile("cpu/pages-1.img").error().code, Code::kDataLoss);
}

}  // namespace
}  // namespace stasis::store
