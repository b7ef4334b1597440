#include "store/image_report.h"

#include <gtest/gtest.h>

#include "store/image_testing.h"

namespace stasis::store {
namespace {

using testing::MakeImage;
using testing::TempStore;

TEST(ReportTest, DocumentSaysWhatARestoreNeeds) {
  TempStore store;
  auto image = ImageReader::Open(MakeImage(store.path(), "a"));
  auto json = InspectJson(**image);
  EXPECT_EQ(json["gpus"][0]["used_bytes"], 1ull << 30);
  EXPECT_EQ(json["processes"][0]["gpu_state"], "running");
  EXPECT_EQ(json["files"].size(), 4u);
  EXPECT_FALSE(json.dump().empty()) << "valid UTF-8, whatever the program is called";
  EXPECT_EQ(json["origin"]["by"], "unknown");
}

}  // namespace
}  // namespace stasis::store
