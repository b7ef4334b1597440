#include "containers/criu_config.h"

#include <gtest/gtest.h>

namespace stasis::containers {
namespace {

constexpr char kOurs[] =
    "# `stasis container setup` wrote this; `stasis container remove` deletes it.\n"
    "libdir /opt/stasis/criu\n"
    "timeout 600\n"
    "# End of the lines of Stasis.\n";

std::string Added(const std::string& text) {
  auto added = AddToCriuConfig(text, "/opt/stasis/criu", "default.conf");
  return added ? *added : "error: " + added.error().ToString();
}

TEST(CriuConfigTest, AnEmptyFileGetsTheLines) { EXPECT_EQ(Added(""), kOurs); }

TEST(CriuConfigTest, OtherLinesStayByteForByte) {
  const std::string theirs = "tcp-established  # ours\n\n#libdir /x\n  log-level 4\n";
  EXPECT_EQ(Added(theirs), theirs + kOurs);
  EXPECT_EQ(RemoveFromCriuConfig(theirs + kOurs), theirs);
  EXPECT_EQ(RemoveFromCriuConfig(theirs + kOurs + "ghost-limit 1\n"), theirs + "ghost-limit 1\n");
  EXPECT_EQ(RemoveFromCriuConfig(theirs), theirs);
}

TEST(CriuConfigTest, AMissingNewlineIsAdded) { EXPECT_EQ(Added("a"), std::string("a\n") + kOurs); }

TEST(CriuConfigTest, AddingTwiceIsAddingOnce) { EXPECT_EQ(Added(Added("a\n")), Added("a\n")); }

TEST(CriuConfigTest, AnOlderFolderOfOursIsReplaced) {
  auto old = AddToCriuConfig("a\n", "/opt/old", "default.conf");
  ASSERT_TRUE(old);
  EXPECT_EQ(Added(*old), Added("a\n"));
}

TEST(CriuConfigTest, AnotherLibdirIsRefusedByName) {
  for (const char* text : {"libdir /usr/lib/criu\n", "libdir=/usr/lib/criu\n",
                           "  libdir \"/usr/lib/criu\" # x\n", "a\nlibdir /usr/lib/criu"}) {
    auto added = AddToCriuConfig(text, "/opt/stasis/criu", "/etc/criu/default.conf");
    ASSERT_FALSE(added) << text;
    EXPECT_EQ(added.error().code, Code::kFailedPrecondition);
    EXPECT_NE(added.error().message.find("/etc/criu/default.conf already says `libdir "
                                         "/usr/lib/criu`"),
              std::string::npos)
        << added.error().message;
  }
}

TEST(CriuConfigTest, TheSameLibdirAndAnyTimeoutAreKept) {
  EXPECT_EQ(Added("libdir /opt/stasis/criu\ntimeout 5\n"), "libdir /opt/stasis/criu\ntimeout 5\n");
  const std::string added = Added("timeout 5\n");
  EXPECT_EQ(added.find("600"), std::string::npos);
  EXPECT_EQ(ReadCriuConfig(added).timeout, 5);
}

TEST(CriuConfigTest, LinesPutBetweenOursAreNotOurs) {
  const std::string mixed =
      "# `stasis container setup` wrote this; `stasis container remove` deletes it.\n"
      "libdir /opt/stasis/criu\n"
      "tcp-established\n"
      "# End of the lines of Stasis.\n";
  EXPECT_EQ(RemoveFromCriuConfig(mixed), "tcp-established\n");
}

TEST(CriuConfigTest, ALibdirBelowALostEndIsDeletedOnlyIfItFollowsOurs) {
  const std::string text =
      std::string(kOurs).substr(0, std::string(kOurs).find("# End")) + "ghost-limit 1\n";
  EXPECT_EQ(RemoveFromCriuConfig(text), "ghost-limit 1\n");
}

TEST(CriuConfigTest, TheLastOneCounts) {
  const CriuConfig config = ReadCriuConfig("libdir /a\nlibdir /b\n#libdir /c\ntimeout x\n");
  EXPECT_EQ(config.libdir, "/b");
  EXPECT_FALSE(config.timeout);
  EXPECT_FALSE(config.has_ours);
}

}  // namespace
}  // namespace stasis::containers
