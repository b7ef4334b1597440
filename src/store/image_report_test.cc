#include "store/image_report.h"

#include <gtest/gtest.h>

#include "store/image_testing.h"

namespace stasis::store {
namespace {

using testing::MakeImage;
using testing::TempStore;
using testing::WriteFile;

bool Holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(ReportTest, AnInspectionSaysWhatARestoreNeeds) {
  TempStore store;
  auto image = ImageReader::Open(MakeImage(store.path(), "a"));
  std::string text = InspectText(**image);
  for (const char* part : {"format     1", "job        llama, left running, suspended",
                           "driver     softgpu 580.159.04", "process    4711 counter, GPU memory",
                           "softgpu GPU-1: 1.0 GiB of 8.0 GiB", "tty[1b:2]", "criu dump"}) {
    EXPECT_TRUE(Holds(text, part)) << part << " is not in\n" << text;
  }
  EXPECT_FALSE(Holds(text, "\x01")) << "a control character for somebody's terminal";
  auto json = InspectJson(**image);
  EXPECT_EQ(json["gpus"][0]["used_bytes"], 1ull << 30);
  EXPECT_EQ(json["processes"][0]["gpu_state"], "running");
  EXPECT_EQ(json["files"].size(), 4u);
  EXPECT_FALSE(json.dump().empty());
  EXPECT_TRUE(Holds(text, "origin     unknown: no MAC"));
  EXPECT_EQ(json["origin"]["by"], "unknown");
}

TEST(ReportTest, AVerificationNamesWhatItFound) {
  TempStore store;
  std::string path = MakeImage(store.path(), "a");
  auto image = ImageReader::Open(path);
  auto report = (*image)->Verify(VerifyLevel::kFull);
  EXPECT_TRUE(Holds(VerifyText(**image, *report), ": whole, 4 files, "));
  EXPECT_EQ(VerifyJson(**image, *report)["ok"], true);

  WriteFile(path + "/cpu/more.img", "x");
  report = (*image)->Verify(VerifyLevel::kFull);
  EXPECT_TRUE(Holds(VerifyText(**image, *report), "cpu/more.img is not part of the image\n"));
  EXPECT_EQ(VerifyJson(**image, *report)["findings"][0]["path"], "cpu/more.img");
  auto status = report->ToStatus("a");
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().message, "image a is damaged: cpu/more.img is not part of the image");
}

}  // namespace
}  // namespace stasis::store
