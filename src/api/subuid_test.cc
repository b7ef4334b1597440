#include "api/subuid.h"

#include <gtest/gtest.h>

namespace stasis::api {
namespace {

const char kFile[] =
    "# none\n"
    "4001:100000:65536\n"
    "root:200000:10\n"
    "nobody-of-that-name:300000:10\n"
    "4002:400000\n"
    "4003:x:10\n"
    "4004:500000:18446744073709551615\n"
    "\n"
    "4005:600000:1";

TEST(SubuidTest, ASubordinateIdBelongsToItsOwner) {
  EXPECT_EQ(OwnerOfSubuidIn(kFile, 100000), 4001u);
  EXPECT_EQ(OwnerOfSubuidIn(kFile, 165535), 4001u);
  EXPECT_EQ(OwnerOfSubuidIn(kFile, 200009), 0u);
  EXPECT_EQ(OwnerOfSubuidIn(kFile, 600000), 4004u);  // the first match
  EXPECT_EQ(OwnerOfSubuidIn("4005:600000:1", 600000), 4005u);
}

TEST(SubuidTest, AnyOtherIdBelongsToItself) {
  for (uid_t uid : {0u, 1000u, 99999u, 165536u, 200010u, 300000u, 400000u}) {
    EXPECT_EQ(OwnerOfSubuidIn(kFile, uid), uid);
  }
  EXPECT_EQ(OwnerOfSubuidIn("", 7), 7u);
}

}  // namespace
}  // namespace stasis::api
