#include "base/size.h"

#include <gtest/gtest.h>

namespace stasis {
namespace {

TEST(SizeTest, ValidSizes) {
  struct Row {
    const char* text;
    uint64_t bytes;
  };
  for (const Row& row :
       {Row{"1", 1}, Row{"4096", 4096}, Row{"4096B", 4096}, Row{"1K", 1024},
        Row{"512m", 512ull << 20}, Row{"32GiB", 32ull << 30}, Row{"32G", 32ull << 30},
        Row{"32GB", 32'000'000'000}, Row{"1.5T", 3ull << 39}, Row{"1024TiB", 1ull << 50}}) {
    auto bytes = ParseSize(row.text);
    ASSERT_TRUE(bytes) << row.text << ": " << bytes.error().ToString();
    EXPECT_EQ(*bytes, row.bytes) << row.text;
  }
}

TEST(SizeTest, InvalidSizesAreUsageErrors) {
  for (const char* text : {"",
                           "G",
                           "-1",
                           "-1G",
                           "0",
                           "0G",
                           "0.2",
                           "nan",
                           "inf",
                           "infinity",
                           "0x10",
                           "1e3",
                           "1 G",
                           " 1G",
                           "1G ",
                           "1GiB2",
                           "1PiB",
                           "1025TiB",
                           "99999999999999999999999",
                           "32gigs",
                           "1,5G",
                           "1.G.2"}) {
    auto bytes = ParseSize(text);
    ASSERT_FALSE(bytes) << text;
    EXPECT_EQ(ExitCode(bytes.error()), 2) << text;
  }
}

}  // namespace
}  // namespace stasis
