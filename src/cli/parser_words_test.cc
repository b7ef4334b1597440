#include "cli/parser_words.h"

#include <gtest/gtest.h>

namespace stasis::cli {
namespace {

TEST(ClosestName, IsTheNameWithTheFewestEdits) {
  const std::vector<std::string> verbs = {"suspend", "resume", "restore", "dump", "ps", "image"};
  EXPECT_EQ(ClosestName("supsend", verbs), "suspend");
  EXPECT_EQ(ClosestName("suspnd", verbs), "suspend");
  EXPECT_EQ(ClosestName("restor", verbs), "restore");
  EXPECT_EQ(ClosestName("images", verbs), "image");
  EXPECT_EQ(ClosestName("dmup", verbs), "dump");
  EXPECT_EQ(ClosestName("p", verbs), "ps");
}

TEST(ClosestName, IsTheOnlyNameThatBeginsWithTheWord) {
  const std::vector<std::string> verbs = {"checkpoints", "check-all", "completion"};
  EXPECT_EQ(ClosestName("comp", verbs), "completion");
  EXPECT_EQ(ClosestName("che", verbs), "");
}

TEST(ClosestName, IsEmptyWhenNoNameIsClose) {
  const std::vector<std::string> verbs = {"suspend", "dump", "ps"};
  EXPECT_EQ(ClosestName("no-such-verb", verbs), "");
  EXPECT_EQ(ClosestName("x", verbs), "");
  EXPECT_EQ(ClosestName("xy", verbs), "");
  EXPECT_EQ(ClosestName(std::string(100000, 'a'), verbs), "");
}

}  // namespace
}  // namespace stasis::cli
