#include "slurm/error_output.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "base/file.h"

namespace stasis::slurm {
namespace {

using ::testing::ElementsAre;

class ErrorOutputTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/error-output-XXXXXX";
    folder_ = ::mkdtemp(pattern);
    path_ = folder_ + "/err";
  }
  void TearDown() override { ASSERT_TRUE(RemoveTree(folder_)); }

  void Append(const std::string& text) {
    auto file = Open(path_, O_WRONLY | O_APPEND | O_CREAT);
    ASSERT_TRUE(file && WriteAll(file->get(), text));
  }

  std::string folder_, path_;
};

TEST_F(ErrorOutputTest, CopiesWhatIsAddedAndFreesItsSpace) {
  Append("of an earlier step\n");
  const std::string text(3 << 20, 'x');
  auto output = ErrorOutput::Follow(path_);
  ASSERT_TRUE(output);
  auto copy = Open(folder_ + "/copy", O_WRONLY | O_CREAT);
  ASSERT_TRUE(copy);
  Append(text);
  pollfd ready{output->fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&ready, 1, 10000), 1);
  EXPECT_TRUE(output->Copy(copy->get()));
  EXPECT_EQ(ReadFile(folder_ + "/copy").value_or("").size(), 1U << 20);
  output->CopyAll(copy->get(), {});
  Append("end\n");
  EXPECT_FALSE(output->Copy(copy->get()));
  EXPECT_TRUE(ReadFile(folder_ + "/copy").value_or("") == text + "end\n");
  struct stat info {};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_size, 19 + (3 << 20) + 4);
  EXPECT_LE(info.st_blocks * 512, 8192);
}

TEST_F(ErrorOutputTest, AFullPipeDoesNotBlock) {
  auto output = ErrorOutput::Follow(path_);
  ASSERT_TRUE(output);
  std::string text;
  for (int i = 0; text.size() < 200'000; ++i) text += std::to_string(i) + "\n";
  Append(text);
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  EXPECT_TRUE(output->Copy(pipe[1]));
  EXPECT_TRUE(output->Copy(pipe[1]));
  output->CopyAll(pipe[1], Deadline::In(std::chrono::milliseconds(1)));
  WriteUntil(Deadline::In(std::chrono::milliseconds(1)), pipe[1], "not written");
  std::string copied;
  char buffer[3000];
  bool more = true;
  while (more || copied.size() < text.size()) {
    const ssize_t got = ::read(pipe[0], buffer, sizeof buffer);
    ASSERT_GT(got, 0);
    copied.append(buffer, static_cast<size_t>(got));
    more = output->Copy(pipe[1]);
  }
  EXPECT_TRUE(copied == text);
  ::close(pipe[0]);
  ::close(pipe[1]);
}

TEST_F(ErrorOutputTest, TruncatesTheFileWhereHolesCannotBeMade) {
  auto output = ErrorOutput::Follow(path_, [](int, int, off_t, off_t) {
    errno = EOPNOTSUPP;
    return -1;
  });
  ASSERT_TRUE(output);
  auto copy = Open(folder_ + "/copy", O_WRONLY | O_CREAT);
  ASSERT_TRUE(copy);
  const std::string text(16 << 20, 'x');
  Append(text);
  output->CopyAll(copy->get(), {});
  struct stat info {};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_size, 0);
  Append("next\n");
  output->CopyAll(copy->get(), {});
  EXPECT_TRUE(ReadFile(folder_ + "/copy").value_or("") == text + "next\n");
}

TEST_F(ErrorOutputTest, AClosedTargetIsNoError) {
  auto output = ErrorOutput::Follow(path_);
  ASSERT_TRUE(output);
  Append("lost\n");
  output->Copy(-1);
  Append("not repeated\n");
  auto copy = Open(folder_ + "/copy", O_WRONLY | O_CREAT);
  ASSERT_TRUE(copy);
  output->Copy(copy->get());
  EXPECT_EQ(ReadFile(folder_ + "/copy").value_or(""), "not repeated\n");
}

TEST_F(ErrorOutputTest, AProgramGetsTheFileAsItsStandardError) {
  const auto words = WordsWithErrors("/step", path_, {"/bin/sh", "-c", "echo a >&2; exit 3"});
  EXPECT_THAT(words,
              ElementsAre("/step", "--errors", path_, "--", "/bin/sh", "-c", "echo a >&2; exit 3"));
  const pid_t child = ::fork();
  if (child == 0) ::_exit(ExecWithErrors({words.begin() + 1, words.end()}));
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 3);
  EXPECT_EQ(ReadFile(path_).value_or(""), "a\n");
  EXPECT_EQ(ExecWithErrors({"--job", "a", "--", "b"}), -1);
}

TEST_F(ErrorOutputTest, OneFileOrPipeIsNotApart) {
  auto file = Open(path_, O_WRONLY | O_CREAT);
  auto again = Open(path_, O_WRONLY);
  int pipe[2], other[2];
  ASSERT_EQ(::pipe(pipe), 0);
  ASSERT_EQ(::pipe(other), 0);
  ASSERT_TRUE(file && again);
  EXPECT_FALSE(AreApart(file->get(), again->get()));
  EXPECT_FALSE(AreApart(pipe[1], pipe[1]));
  EXPECT_TRUE(AreApart(file->get(), pipe[1]));
  EXPECT_TRUE(AreApart(pipe[1], other[1]));
  EXPECT_FALSE(AreApart(file->get(), -1));
  for (const int fd : {pipe[0], pipe[1], other[0], other[1]}) ::close(fd);
}

}  // namespace
}  // namespace stasis::slurm
