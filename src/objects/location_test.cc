#include "objects/location.h"

#include <gtest/gtest.h>

namespace stasis::objects {
namespace {

TEST(Location, ParsesBucketsAndFolders) {
  struct Row {
    const char* text;
    const char* canonical;
    const char* bucket;
    const char* prefix;
    const char* folder;
  };
  for (const Row& row :
       {Row{"s3://bucket", "s3://bucket", "bucket", "", ""},
        Row{"s3://bucket/", "s3://bucket", "bucket", "", ""},
        Row{"s3://bucket/a/b/", "s3://bucket/a/b", "bucket", "a/b", ""},
        Row{"/mnt/images/", "/mnt/images", "", "", "/mnt/images"}, Row{"/", "/", "", "", "/"}}) {
    const auto location = ParseLocation(row.text);
    ASSERT_TRUE(location) << row.text << ": " << location.error().ToString();
    EXPECT_EQ(location->ToString(), row.canonical);
    EXPECT_EQ(location->bucket, row.bucket);
    EXPECT_EQ(location->prefix, row.prefix);
    EXPECT_EQ(location->folder, row.folder);
  }
}

TEST(Location, RefusesOthersWithAHint) {
  for (const std::string& text :
       {std::string(), std::string("images"), std::string("./images"), std::string("s3://"),
        std::string("s3:///a"), std::string("s3://bucket//a"), std::string("s3://bucket/a b"),
        std::string("s3://bucket/../x"), std::string("gs://bucket"), std::string("/a\0b", 4),
        "s3://bucket/" + std::string(401, 'a')}) {
    const auto location = ParseLocation(text);
    ASSERT_FALSE(location) << text;
    EXPECT_EQ(location.error().code, Code::kInvalidArgument);
    EXPECT_FALSE(location.error().hint.empty());
  }
}

TEST(Location, OpensWhatItNames) {
  const auto folder = OpenObjectStore(*ParseLocation("/tmp"), {});
  ASSERT_TRUE(folder) << folder.error().ToString();
  EXPECT_EQ((*folder)->Name(), "/tmp");
  const auto bucket = OpenObjectStore(*ParseLocation("s3://bucket/pre/fix"), {});
  ASSERT_TRUE(bucket) << bucket.error().ToString();
  EXPECT_EQ((*bucket)->Name(), "s3://bucket/pre/fix");
}

TEST(Location, RefusesBadS3Options) {
  EXPECT_FALSE(OpenObjectStore(*ParseLocation("s3://b_"), {}));
  for (const char* endpoint :
       {"host:9000", "ftp://host", "https://", "https://host/path", "https://user@host"}) {
    s3::S3Options options;
    options.endpoint = endpoint;
    EXPECT_FALSE(OpenObjectStore(*ParseLocation("s3://bucket"), options)) << endpoint;
  }
}

}  // namespace
}  // namespace stasis::objects
