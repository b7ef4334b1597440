#include "api/detach_keys.h"

#include <gtest/gtest.h>

namespace stasis::api {
namespace {

// Returns the bytes that reach the program if `bytes` are typed one by one, followed by "!" if it
// detached.
std::string Typed(const std::string& keys, const std::string& bytes) {
  auto parsed = DetachKeys::Parse(keys);
  EXPECT_TRUE(parsed) << keys;
  std::string through;
  bool detached = false;
  for (char c : bytes) {
    through += parsed->Filter({&c, 1}, &detached);
    if (detached) return through + "!";
  }
  return through;
}

TEST(DetachKeys, AreTakenOutWhenTheyAreCompleteAndElseReachTheProgram) {
  EXPECT_EQ(Typed(kDefaultDetachKeys, "ab\x10\x11"), "ab!");
  EXPECT_EQ(Typed(kDefaultDetachKeys, "\x10x\x10\x11"), "\x10x!");
  EXPECT_EQ(Typed(kDefaultDetachKeys, "\x10\x10\x11"), "\x10!");
  EXPECT_EQ(Typed(kDefaultDetachKeys, "\x11\x10"), "\x11");  // one byte is held back
  EXPECT_EQ(Typed("a,a,b", "aaab"), "a!");
  EXPECT_EQ(Typed("a,b,a,c", "ababac"), "ab!");
  EXPECT_EQ(Typed("ctrl-],d",
                  "\x1d\x1d"
                  "d"),
            "\x1d!");
  EXPECT_EQ(Typed("none", "\x10\x11"), "\x10\x11");
}

TEST(DetachKeys, AtOnceIsTheSame) {
  auto keys = DetachKeys::Parse("x,y");
  bool detached = false;
  EXPECT_EQ(keys->Filter("1x2xx", &detached), "1x2x");
  EXPECT_FALSE(detached);
  EXPECT_EQ(keys->Filter("y3", &detached), "");
  EXPECT_TRUE(detached);
}

TEST(DetachKeys, OthersAreRefused) {
  for (const char* keys :
       {"", ",", "ctrl-", "ctrl-P", "ctrl-ab", "a,,b", "ab", "a,", "alt-a", "a,b,c,d,e,f,g,h,i"}) {
    EXPECT_FALSE(DetachKeys::Parse(keys)) << keys;
  }
}

}  // namespace
}  // namespace stasis::api
