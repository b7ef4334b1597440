#include "shim/output_log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace stasis::shim {
namespace {

class OutputLogTest : public ::testing::Test {
 protected:
  OutputLogTest() {
    char name[] = "/tmp/stasis-log-XXXXXX";
    folder_ = ::mkdtemp(name);
  }
  ~OutputLogTest() override { (void)RemoveTree(folder_); }
  std::string Log() const { return ReadFile(path()).value_or("(none)"); }
  std::string path() const { return folder_ + "/log"; }

  std::string folder_;
};

TEST_F(OutputLogTest, AppendsToAnExistingFileAndKeepsIt) {
  ASSERT_TRUE(WriteFileDurably(path(), "old\n"));
  auto log = OutputLog::Open(path());
  ASSERT_TRUE(log);
  struct stat st;
  ASSERT_EQ(::stat(path().c_str(), &st), 0);
  EXPECT_EQ(log->id(), FileId::Of(st));
  EXPECT_EQ(::fcntl(log->fd(), F_GETFL) & (O_ACCMODE | O_APPEND | O_NONBLOCK), O_WRONLY | O_APPEND);
  ASSERT_TRUE(WriteAll(log->fd(), "new\n"));
  EXPECT_EQ(Log(), "old\nnew\n");
  ASSERT_EQ(::truncate(path().c_str(), 0), 0);
  ASSERT_TRUE(WriteAll(log->fd(), "more\n"));
  EXPECT_EQ(Log(), "more\n");
  log->RemoveIfCreated();
  EXPECT_TRUE(PathExists(path()));
}

TEST_F(OutputLogTest, RemovesAFileThatItCreated) {
  auto log = OutputLog::Open(path());
  ASSERT_TRUE(log);
  log->RemoveIfCreated();
  EXPECT_FALSE(PathExists(path()));
}

TEST_F(OutputLogTest, RejectsFilesThatCannotBeALog) {
  EXPECT_TRUE(OutputLog::Open("/dev/null"));
  for (const char* descriptor : {"/dev/stdout", "/dev/stderr", "/dev/fd/1", "/proc/self/fd/1"}) {
    auto log = OutputLog::Open(descriptor);
    ASSERT_FALSE(log) << "the path would name a descriptor of the shim, not of the caller";
    EXPECT_EQ(log.error().raw, EBADF) << descriptor;
  }
  EXPECT_FALSE(OutputLog::Open(folder_));
  EXPECT_FALSE(OutputLog::Open(folder_ + "/no/such"));
  ASSERT_EQ(::mkfifo(path().c_str(), 0600), 0);
  auto unread = OutputLog::Open(path());
  ASSERT_FALSE(unread) << "an open that waits for a reader would block the job";
  EXPECT_EQ(unread.error().raw, ENOTSUP);
  UniqueFd reader(::open(path().c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  auto read = OutputLog::Open(path());
  ASSERT_FALSE(read) << "the job would fail when the reader ends";
  EXPECT_EQ(read.error().raw, ENOTSUP);

  int master, slave;
  char name[64];
  ASSERT_EQ(::openpty(&master, &slave, name, nullptr, nullptr), 0);
  UniqueFd ours(master), theirs(slave);
  EXPECT_FALSE(OutputLog::Open(name));
}

TEST_F(OutputLogTest, AJobsLogIsARegularFileOfTheUser) {
  auto refused = [&] {
    auto log = OutputLog::OpenJobs(path());
    return log ? 0 : log.error().raw;
  };
  EXPECT_EQ(refused(), 0) << "created";
  EXPECT_EQ(refused(), 0) << "opened again";
  const std::string other = folder_ + "/other";
  ASSERT_EQ(::link(path().c_str(), other.c_str()), 0);
  EXPECT_EQ(refused(), 0) << "a second link, which only the user can have created";
  ASSERT_EQ(::chmod(folder_.c_str(), 0777), 0);
  EXPECT_EQ(refused(), EMLINK) << "a second link, which any user may have created";
  ASSERT_EQ(::chmod(folder_.c_str(), 0700), 0);
  ASSERT_EQ(::unlink(path().c_str()), 0);
  ASSERT_EQ(::symlink(other.c_str(), path().c_str()), 0);
  EXPECT_EQ(refused(), ELOOP);
  ASSERT_EQ(::unlink(other.c_str()), 0);
  EXPECT_EQ(refused(), ELOOP) << "a link to nothing";
  EXPECT_FALSE(PathExists(other));
  ASSERT_EQ(::unlink(path().c_str()), 0);
  ASSERT_EQ(::mkfifo(path().c_str(), 0600), 0);
  EXPECT_EQ(refused(), ENOTSUP);
  ASSERT_EQ(::unlink(path().c_str()), 0);
  ASSERT_EQ(::symlink("/dev/null", path().c_str()), 0);
  EXPECT_EQ(refused(), ELOOP);
}

}  // namespace
}  // namespace stasis::shim
