#include "objects/s3/s3_answer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace stasis::objects::s3 {
namespace {

std::string ListOf(const std::string& contents) {
  return "<ListBucketResult><EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>" +
         contents + "</ListBucketResult>";
}

std::string Entry(const std::string& key, const std::string& size = "7",
                  const std::string& more = "") {
  return "<Contents><Key>" + key + "</Key><Size>" + size + "</Size>" + more + "</Contents>";
}

TEST(S3Answer, HasAList) {
  std::string last = "p/a";
  const auto page =
      ParseList(ListOf(Entry("p%2Fb") + Entry("p/c%20d") + Entry("p/e+f")), "p/", &last);
  ASSERT_TRUE(page) << page.error().ToString();
  ASSERT_EQ(page->objects.size(), 1u);
  EXPECT_EQ(page->objects[0].key, "b");
  EXPECT_EQ(page->objects[0].bytes, 7u);
  EXPECT_TRUE(page->more);
  EXPECT_EQ(last, "p/e f");
}

TEST(S3Answer, HasTheTimesOfObjects) {
  std::string last;
  const auto page =
      ParseList(ListOf(Entry("a", "7", "<LastModified>2026-11-25T22:00:00.000Z</LastModified>") +
                       Entry("b", "7", "<LastModified>yesterday</LastModified>") + Entry("c")),
                "", &last);
  ASSERT_TRUE(page && page->objects.size() == 3);
  EXPECT_EQ(page->objects[0].put_unix_s, 1795644000);
  EXPECT_EQ(page->objects[1].put_unix_s, std::nullopt);
  EXPECT_EQ(page->objects[2].put_unix_s, std::nullopt);
}

TEST(S3Answer, IsRefusedIfItIsNotTheList) {
  for (const std::string& document :
       {std::string("<Error/>"), ListOf(Entry("p/b") + Entry("p/b")), ListOf(Entry("q/a")),
        ListOf(Entry("p/a")), ListOf(Entry("p/b", "-1")), ListOf(Entry("p/b", "")),
        ListOf(Entry("p/%zz"))}) {
    std::string last = "p/a";
    EXPECT_FALSE(ParseList(document, "p/", &last)) << document;
  }
}

TEST(S3Answer, HasARange) {
  EXPECT_EQ(ParseContentRange("bytes 5-9/100", 5, 10), 5u);
  EXPECT_EQ(ParseContentRange("bytes 5-7/8", 5, 10), 3u);
  EXPECT_EQ(ParseContentRange("bytes 5-9/*", 5, 10), 5u);
  for (const char* text : {"", "bytes", "bytes 5-9", "bytes 4-9/100", "bytes 5-10/100",
                           "bytes 5-4/100", "bytes -9/100", "bytes 5-/100", "items 5-9/100",
                           "bytes 5/9-100", "bytes 5-99999999999999999999/100"}) {
    EXPECT_EQ(ParseContentRange(text, 5, 10), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace stasis::objects::s3
