#include "objects/mounts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/sysmacros.h>

namespace stasis::objects {
namespace {

using ::testing::HasSubstr;

constexpr char kMountInfo[] =
    "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro\n"
    "36 22 0:44 /a /mnt/a\\040b rw,relatime - nfs4 server:/a rw,vers=4.2,hard\n"
    "37 22 0:45 /b /mnt/b rw,noatime shared:7 master:2 - nfs server:/b rw,noac\n"
    "38 22 0:45 /b /mnt/c rw - nfs server:/c rw,hard\n"
    "39 22 0:46 / /mnt/d rw - nfs\n"
    "40 22\n";

TEST(MountsTest, AreFoundByTheirDevice) {
  const auto mount = FindMount(kMountInfo, makedev(0, 44));
  ASSERT_TRUE(mount);
  EXPECT_EQ(mount->type, "nfs4");
  EXPECT_EQ(mount->options, "rw,vers=4.2,hard");
  EXPECT_EQ(FindMount(kMountInfo, makedev(8, 1))->type, "ext4");
  EXPECT_EQ(FindMount(kMountInfo, makedev(0, 45))->options, "rw,hard");
  EXPECT_FALSE(FindMount(kMountInfo, makedev(0, 46)));
  EXPECT_FALSE(FindMount(kMountInfo, makedev(0, 4)));
  EXPECT_FALSE(FindMount("", makedev(8, 1)));
}

TEST(MountsTest, OfNfsMustNotKeepAttributes) {
  const auto check = [](const char* type, const char* options) {
    return CheckMount({type, options}, "/mnt/x");
  };
  EXPECT_TRUE(check("ext4", "rw"));
  EXPECT_TRUE(check("lustre", "rw"));
  for (const char* type : {"nfs", "nfs4"}) {
    EXPECT_TRUE(check(type, "rw,noac,hard"));
    EXPECT_TRUE(check(type, "rw,acregmin=0,acregmax=0,acdirmin=0,acdirmax=0,hard"));
    for (const char* options : {"", "rw,hard", "rw,lookupcache=none", "rw,acdirmax=0",
                                "rw,acregmin=0,acdirmin=0", "rw,acregmax=0,acdirmax=01"}) {
      const Status status = check(type, options);
      ASSERT_FALSE(status) << options;
      EXPECT_EQ(status.error().code, Code::kFailedPrecondition);
      EXPECT_THAT(status.error().message, HasSubstr("/mnt/x"));
      EXPECT_THAT(status.error().hint, HasSubstr("actimeo=0"));
    }
  }
}

}  // namespace
}  // namespace stasis::objects
