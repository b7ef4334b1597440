#include "api/utf8.h"

#include <gtest/gtest.h>

namespace stasis::api {
namespace {

TEST(Utf8Test, ValidTextIsKept) {
  for (const std::string text :
       {"", "plain", "\xc3\xa4", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_EQ(Utf8(text), text);
  }
}

TEST(Utf8Test, EachInvalidByteBecomesAQuestionMark) {
  EXPECT_EQ(Utf8("a\xff"
                 "b"),
            "a?b");
  EXPECT_EQ(Utf8("\xc3"), "?");                 // cut off
  EXPECT_EQ(Utf8("\xc0\x80"), "??");            // overlong
  EXPECT_EQ(Utf8("\xed\xa0\x80"), "???");       // a surrogate
  EXPECT_EQ(Utf8("\xf4\x90\x80\x80"), "????");  // above the last code point
  EXPECT_EQ(Utf8("\xe2\x82"
                 "x"),
            "??x");
}

}  // namespace
}  // namespace stasis::api
