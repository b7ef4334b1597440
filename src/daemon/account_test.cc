#include "daemon/account.h"

#include <gtest/gtest.h>

namespace stasis::daemon {
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

TEST(Account, IsTheOwnersOfSubordinateIds) {
  EXPECT_EQ(AccountIn(kFile, 100000), 4001u);
  EXPECT_EQ(AccountIn(kFile, 165535), 4001u);
  EXPECT_EQ(AccountIn(kFile, 200009), 0u);
  EXPECT_EQ(AccountIn(kFile, 600000), 4004u);  // the first that has it
  EXPECT_EQ(AccountIn("4005:600000:1", 600000), 4005u);
}

TEST(Account, IsOnesOwnWhereNoLineSaysOtherwise) {
  for (uid_t uid : {0u, 1000u, 99999u, 165536u, 200010u, 300000u, 400000u}) {
    EXPECT_EQ(AccountIn(kFile, uid), uid);
  }
  EXPECT_EQ(AccountIn("", 7), 7u);
}

}  // namespace
}  // namespace stasis::daemon
