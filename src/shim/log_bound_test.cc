#include "shim/log_bound.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/stat.h>

namespace stasis::shim {
namespace {

constexpr uint64_t kKeep = 64 << 10;

class LogBoundTest : public ::testing::Test {
 protected:
  LogBoundTest() {
    char name[] = "/tmp/stasis-bound-XXXXXX";
    folder_ = ::mkdtemp(name);
    Append(1);
  }
  ~LogBoundTest() override { (void)RemoveTree(folder_); }

  void Append(size_t bytes) {
    auto file = Open(path(), O_WRONLY | O_APPEND | O_CREAT);
    ASSERT_TRUE(WriteAll(file->get(), std::string(bytes, 'x')));
  }
  struct stat Look() const {
    struct stat st {};
    EXPECT_EQ(::stat(path().c_str(), &st), 0);
    return st;
  }
  uint64_t Held() const { return static_cast<uint64_t>(Look().st_blocks) * 512; }
  LogBound Bound() const { return {path(), FileId::Of(Look()), kKeep}; }
  // Polls like the shim does.
  static void Wait(LogBound& bound) {
    ::poll(nullptr, 0, bound.PollTimeout());
    bound.Serve();
  }
  std::string path() const { return folder_ + "/log"; }
  std::string folder_;
};

TEST_F(LogBoundTest, OldOutputIsFreedAndTheEndKeepsItsOffset) {
  LogBound bound = Bound();
  for (int i = 1; i <= 5; ++i) {
    Append(1 << 20);
    Wait(bound);
    EXPECT_EQ(Look().st_size, i * (1 << 20) + 1);
    EXPECT_GE(Held(), kKeep);
    EXPECT_LE(Held(), kKeep + (64 << 10) + 8192) << i;
  }
  auto text = ReadFile(path());
  ASSERT_TRUE(text);
  EXPECT_EQ(text->substr(text->size() - kKeep), std::string(kKeep, 'x'));
  EXPECT_EQ((*text)[0], '\0');
}

TEST_F(LogBoundTest, ALogThatWasLargeBeforeIsCutToo) {
  Append(3 << 20);
  LogBound bound = Bound();
  EXPECT_LE(Held(), kKeep + 8192);
}

TEST_F(LogBoundTest, ASmallExcessFreesNothing) {
  Append(kKeep + 1000);
  LogBound bound = Bound();
  EXPECT_EQ(ReadFile(path())->find('\0'), std::string::npos);
}

TEST_F(LogBoundTest, ATruncatedLogIsBoundedAgain) {
  Append(3 << 20);
  LogBound bound = Bound();
  ASSERT_EQ(::truncate(path().c_str(), 0), 0);
  Append(kKeep);
  Wait(bound);
  EXPECT_EQ(*ReadFile(path()), std::string(kKeep, 'x'));
  Append(1 << 20);
  Wait(bound);
  EXPECT_LE(Held(), kKeep + 8192);
}

// A file of the user with the same name must not change.
TEST_F(LogBoundTest, AnotherFileUnderTheNameIsLeftAlone) {
  LogBound bound = Bound();
  ASSERT_EQ(::rename(path().c_str(), (path() + ".1").c_str()), 0);
  Append(3 << 20);
  Wait(bound);
  EXPECT_EQ(bound.PollTimeout(), -1);
  EXPECT_EQ(ReadFile(path())->find('\0'), std::string::npos);
}

}  // namespace
}  // namespace stasis::shim
