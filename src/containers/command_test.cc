#include "containers/command.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"

namespace stasis::containers {
namespace {

Deadline Soon() { return Deadline::In(std::chrono::seconds(20)); }

TEST(CommandTest, OutputAndStatusAreReturned) {
  auto runner = MakeCommandRunner();
  auto output = runner->Run({"sh", "-c", "echo out; echo err >&2; exit 3"}, {Soon(), {}});
  ASSERT_TRUE(output) << output.error().ToString();
  EXPECT_EQ(output->out, "out\n");
  EXPECT_EQ(output->err, "err\n");
  EXPECT_FALSE(output->ok());
  EXPECT_EQ(output->Reason(), "err");
}

TEST(CommandTest, ASilentFailureSaysHowItEnded) {
  auto output = MakeCommandRunner()->Run({"false"}, {Soon(), {}});
  ASSERT_TRUE(output);
  EXPECT_EQ(output->Reason(), "it exited with code 1");
  auto failed = RunOk(*MakeCommandRunner(), {"false"}, Soon());
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().message, "`false`: it exited with code 1");
}

TEST(CommandTest, ALogLineIsCutToItsMessage) {
  const CommandOutput output{
      1 << 8, {}, "time=\"x\" level=error msg=\"container does not exist\"\n"};
  EXPECT_EQ(output.Reason(), "container does not exist");
}

TEST(CommandTest, AMissingProgramIsNotFound) {
  auto runner = MakeCommandRunner();
  EXPECT_EQ(runner->Run({"no-such-program-here"}, {Soon(), {}}).error().code, Code::kNotFound);
  EXPECT_EQ(runner->Find("sh", "/nowhere:/bin"), "/bin/sh");
  EXPECT_EQ(runner->Find("sh", "/nowhere"), "");
}

TEST(CommandTest, ALateCommandIsEnded) {
  auto output = MakeCommandRunner()->Run({"sleep", "1000"},
                                         {Deadline::In(std::chrono::milliseconds(50)), {}});
  ASSERT_FALSE(output);
  EXPECT_EQ(output.error().code, Code::kDeadlineExceeded);
}

TEST(CommandTest, AChildThatKeepsThePipesIsNotWaitedFor) {
  auto output = MakeCommandRunner()->Run({"sh", "-c", "setsid sleep 2 & echo started"},
                                         {Deadline::In(std::chrono::milliseconds(1500)), {}});
  ASSERT_TRUE(output) << output.error().ToString();
  EXPECT_EQ(output->out, "started\n");
}

// Waits until the file has this content.
void ExpectContent(const std::string& path, const std::string& content) {
  std::string text;
  for (int tries = 0; tries < 2000 && text != content; ++tries) {
    ::usleep(10'000);
    text = ReadFile(path).value_or("");
  }
  EXPECT_EQ(text, content);
}

TEST(CommandTest, AProgramThatRunsOnWritesToAPipe) {
  char path[] = "/tmp/command-test-XXXXXX";
  ASSERT_GE(UniqueFd(::mkstemp(path)).get(), 0);
  const std::string line =
      "cat; readlink /proc/$$/fd/0 /proc/$$/fd/1 /proc/$$/fd/2 | cut -d: -f1; echo err >&2; "
      "(sleep 0.2; echo late) &";
  auto output = MakeCommandRunner()->Run({"sh", "-c", line}, {Soon(), path});
  ASSERT_TRUE(output) << output.error().ToString();
  EXPECT_TRUE(output->ok());
  EXPECT_EQ(output->out + output->err, "");
  ExpectContent(path, "pipe\npipe\npipe\nerr\nlate\n");
  ::unlink(path);
}

TEST(CommandTest, AFileThatCannotBeWrittenIsAnError) {
  auto output = MakeCommandRunner()->Run({"true"}, {Soon(), "/no/such/folder/log"});
  ASSERT_FALSE(output);
  EXPECT_EQ(output.error().code, Code::kNotFound) << output.error().ToString();
}

TEST(CommandTest, TheEnvironmentIsAnAllowList) {
  ::setenv("LD_AUDIT_TEST_WORD", "x", 1);
  ::setenv("CONTAINERS_TEST_WORD", "y", 1);
  auto output = RunOk(*MakeCommandRunner(), {"env"}, Soon());
  ::unsetenv("LD_AUDIT_TEST_WORD");
  ::unsetenv("CONTAINERS_TEST_WORD");
  ASSERT_TRUE(output);
  EXPECT_EQ(output->find("LD_AUDIT_TEST_WORD"), std::string::npos);
  EXPECT_NE(output->find("CONTAINERS_TEST_WORD=y"), std::string::npos);
  EXPECT_NE(output->find("/usr/local/sbin"), std::string::npos);
}

TEST(CommandTest, MuchOutputIsBounded) {
  auto output = MakeCommandRunner()->Run({"sh", "-c", "head -c 40000000 /dev/zero"}, {Soon(), {}});
  ASSERT_FALSE(output);
  EXPECT_EQ(output.error().code, Code::kResourceExhausted);
}

}  // namespace
}  // namespace stasis::containers
