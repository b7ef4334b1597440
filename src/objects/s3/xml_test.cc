#include "objects/s3/xml.h"

#include <gtest/gtest.h>

namespace stasis::objects::s3 {
namespace {

TEST(Xml, ReadsElementsAndText) {
  const auto root = ParseXml(
      "<?xml version=\"1.0\"?>\n<r xmlns=\"http://x/\"><a>1 &amp; 2</a><b><c>x</c></b><a/></r>");
  ASSERT_TRUE(root) << root.error().ToString();
  EXPECT_EQ(root->name, "r");
  EXPECT_EQ(root->children.size(), 3u);
  EXPECT_EQ(root->TextOf("a"), "1 & 2");
  EXPECT_EQ(root->Find("b")->TextOf("c"), "x");
  EXPECT_EQ(root->Find("d"), nullptr);
}

TEST(Xml, RefusesWhatIsNotWellFormed) {
  for (const char* text : {"", "<a>", "<a></b>", "text", "<a/><b/>", "{\"json\": 1}"}) {
    EXPECT_FALSE(ParseXml(text)) << text;
  }
}

TEST(Xml, RefusesADtd) { EXPECT_FALSE(ParseXml("<!DOCTYPE a [<!ENTITY b \"c\">]><a>&b;</a>")); }

TEST(Xml, IsBounded) {
  std::string deep;
  for (int i = 0; i < 17; ++i) deep += "<a>";
  for (int i = 0; i < 17; ++i) deep += "</a>";
  EXPECT_FALSE(ParseXml(deep));
  std::string many = "<r>";
  for (int i = 0; i < 40'000; ++i) many += "<a/>";
  EXPECT_FALSE(ParseXml(many + "</r>"));
  EXPECT_FALSE(ParseXml("<r>" + std::string(9 << 20, ' ') + "</r>"));
}

}  // namespace
}  // namespace stasis::objects::s3
