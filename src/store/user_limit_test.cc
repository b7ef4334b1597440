#include "store/user_limit.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/hidden_folders.h"
#include "store/image_testing.h"

namespace stasis::store {
namespace {

TEST(UserLimitTest, DataOfARunningDumpIsNoImage) {
  testing::TempStore store;
  const std::string data(1 << 20, 'x');
  const std::string hidden = std::string(kOverflowPrefix) + "0-host";
  for (const std::string& folder : {std::string("image"), hidden, "image/" + hidden}) {
    std::filesystem::create_directories(store / folder);
    testing::WriteFile(store / (folder + "/data"), data);
  }
  EXPECT_GE(OurBytes(store.path()), 2 * data.size()) << "a folder inside of an image counts";
  EXPECT_LT(OurBytes(store.path()), 3 * data.size());
  EXPECT_FALSE(CheckImageLimit(store.path(), 2 * data.size()));
  EXPECT_TRUE(CheckImageLimit(store.path(), 3 * data.size()));
}

}  // namespace
}  // namespace stasis::store
