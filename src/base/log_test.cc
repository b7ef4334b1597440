#include "base/log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/file.h"

namespace stasis::log {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

json Parsed(std::string_view message, const Fields& fields = {}) {
  const std::string line = Format(R"("level":"info")", message, fields);
  EXPECT_LE(line.size(), kMaxLineBytes);
  EXPECT_EQ(line.find('\n'), line.size() - 1) << line;
  return json::parse(line);
}

TEST(Log, AnyTextBecomesOneLineOfJson) {
  EXPECT_EQ(Parsed("say \"hi\"\\\n{}").at("message"), "say \"hi\"\\\n{}");
  EXPECT_EQ(Parsed(std::string("\xff\x01\0x", 4)).at("message"), std::string("\uFFFD\x01\0x", 6));
  const json line = Parsed(
      "m",
      {{"uid", uint64_t{7}}, {"seconds", 0.5}, {"ok", true}, {"n", int64_t{-1}}, {"t", "a\"b"}});
  EXPECT_EQ(line, (json{{"level", "info"},
                        {"message", "m"},
                        {"uid", 7},
                        {"seconds", 0.5},
                        {"ok", true},
                        {"n", -1},
                        {"t", "a\"b"}}));
}

TEST(Log, LongTextsAreTruncated) {
  const json line = Parsed(std::string(1 << 20, '\x01'), {{"target", std::string(1 << 20, 'x')}});
  EXPECT_GT(line.at("message").get<std::string>().size(), 100U);
  EXPECT_GT(line.at("target").get<std::string>().size(), 100U);
  // The text is cut in the middle of a multi-byte character.
  EXPECT_THAT(Parsed(std::string(2047, 'x') + "\u00e4").at("message").get<std::string>(),
              HasSubstr("\uFFFD"));
}

class LogFile : public ::testing::Test {
 protected:
  LogFile() { std::filesystem::create_directory(folder_); }
  ~LogFile() override {
    (void)Open({.program = "t", .level = Level::kInfo, .fd = -1, .file = "", .max_bytes = 0});
    std::filesystem::remove_all(folder_);
  }
  const std::string folder_ = ::testing::TempDir() + "log-" + std::to_string(::getpid());
  const std::string path_ = folder_ + "/log";
};

TEST_F(LogFile, TheFileIsBoundedAndNoLineIsTorn) {
  constexpr uint64_t kBound = 20000;
  ASSERT_TRUE(
      Open({.program = "t", .level = Level::kInfo, .fd = -1, .file = path_, .max_bytes = kBound}));
  for (int i = 0; i < 2000; ++i) Write(Level::kInfo, std::string(100, 'x'), {{"i", int64_t{i}}});
  int last = -1;
  for (const auto& name : {path_ + ".1", path_}) {
    const std::string text = ReadFile(name).value_or("");
    EXPECT_LE(text.size(), kBound + kMaxLineBytes) << name;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      const int i = json::parse(line).at("i").get<int>();
      if (last >= 0) {
        EXPECT_EQ(i, last + 1);
      }
      last = i;
    }
  }
  EXPECT_EQ(last, 1999);
  EXPECT_EQ(ListDir(folder_)->size(), 2U);
}

TEST_F(LogFile, OnlyARegularFileIsAccepted) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_FALSE(Open({.program = "t", .level = Level::kInfo, .fd = -1, .file = path_}));
  ::unlink(path_.c_str());
  ASSERT_EQ(::symlink("/dev/null", path_.c_str()), 0);
  EXPECT_FALSE(Open({.program = "t", .level = Level::kInfo, .fd = -1, .file = path_}));
}

TEST_F(LogFile, ASlowReaderBlocksNoWriter) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  ASSERT_TRUE(Open({.program = "t", .level = Level::kInfo, .fd = ends[1]}));
  const uint64_t before = Lost();
  for (int i = 0; i < 1000; ++i) Write(Level::kInfo, std::string(1000, 'x'));
  EXPECT_GT(Lost(), before + 500);
  const uint64_t lost = Lost();
  Write(Level::kDebug, "not at this level");
  EXPECT_EQ(Lost(), lost);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(Log, AnErrorHasItsCause) {
  const Error error = ErrnoError(ENOENT, "open \"x\"");
  const json line = Parsed("failed", ErrorFields(error));
  EXPECT_EQ(line.at("code"), CodeName(Code::kNotFound));
  EXPECT_EQ(line.at("domain"), "errno");
  EXPECT_EQ(line.at("raw"), ENOENT);
  EXPECT_THAT(line.at("error").get<std::string>(), HasSubstr("open \"x\""));
}

}  // namespace
}  // namespace stasis::log
