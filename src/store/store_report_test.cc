#include "store/store_report.h"

#include <gtest/gtest.h>

#include "store/image_testing.h"

namespace stasis::store {
namespace {

using testing::MakeImage;
using testing::TempStore;
using testing::WriteFile;

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(ReportTest, TheListShowsDamagedImagesToo) {
  TempStore store;
  MakeImage(store.path(), "good");
  std::string bad = MakeImage(store.path(), "bad");
  WriteFile(bad + "/manifest.pb", "x");
  auto images = SummarizeStore(store.path());
  ASSERT_TRUE(images);
  ASSERT_EQ(images->size(), 2u);
  std::string text = ListText(*images);
  EXPECT_TRUE(Contains(text, "manifest.pb is damaged")) << text;
  EXPECT_TRUE(Contains(text, "./counter --port")) << text;
  auto json = ListJson(*images);
  EXPECT_EQ(json["images"][0]["name"], "bad");
  EXPECT_EQ(json["images"][0]["ok"], false);
  EXPECT_EQ(json["images"][1]["job"], "llama");
  EXPECT_FALSE(json.dump().empty()) << "valid UTF-8, whatever the program is called";
  EXPECT_EQ(ListText(*SummarizeStore("/proc/no-such-folder")), "");
}

}  // namespace
}  // namespace stasis::store
