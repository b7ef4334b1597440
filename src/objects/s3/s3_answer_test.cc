#include "objects/s3/s3_answer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace stasis::objects::s3 {
namespace {

std::string ListOf(const std::string& contents) {
  return "<ListBucketResult><EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>" +
         contents + "</ListBucketResult>";
}

std::string Entry(const std::string& key, const std::string& size = "7") {
  return "<Contents><Key>" + key + "</Key><Size>" + size + "</Size></Contents>";
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
