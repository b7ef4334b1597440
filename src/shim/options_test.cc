#include <gmock/gmock.h>

#include "shim/shim.h"

namespace stasis::shim {
namespace {

using ::testing::ElementsAre;

TEST(ShimOptionsTest, RunAndRestore) {
  auto run = ParseOptions({"run", "--job-dir", "/j", "--log", "/l", "--env", "A=b=c", "--env",
                           "B=", "--", "prog", "--log", "--"});
  ASSERT_TRUE(run);
  EXPECT_EQ(run->mode, ShimOptions::Mode::kRun);
  EXPECT_EQ(run->job_dir, "/j");
  EXPECT_EQ(run->log, "/l");
  EXPECT_THAT(run->argv, ElementsAre("prog", "--log", "--"));
  EXPECT_EQ(run->env, (std::map<std::string, std::string>{{"A", "b=c"}, {"B", ""}}));
  auto restore = ParseOptions({"restore", "--log", "/l", "--fd", "3=100", "--job-dir", "/j", "--fd",
                               "20=101", "--", "criu"});
  ASSERT_TRUE(restore);
  EXPECT_EQ(restore->mode, ShimOptions::Mode::kRestore);
  EXPECT_EQ(restore->criu_fds, (std::map<int, int>{{3, 100}, {20, 101}}));
  EXPECT_FALSE(restore->new_pidns);
  EXPECT_FALSE(restore->terminal);
  EXPECT_EQ(restore->keep_log, 0u);
  auto stdio = ParseOptions({"run", "--log", "/l", "--job-dir", "/j", "--terminal", "24x80",
                             "--client", "4", "--input", "5", "--keep-log", "65536", "--", "x"});
  ASSERT_TRUE(stdio);
  EXPECT_EQ(stdio->terminal, (WindowSize{24, 80}));
  EXPECT_EQ(stdio->client, 4);
  EXPECT_EQ(stdio->input, 5);
  EXPECT_EQ(stdio->keep_log, 65536u);
  auto apart = ParseOptions(
      {"restore", "--log", "/l", "--job-dir", "/j", "--new-pidns", "4711", "--", "criu"});
  ASSERT_TRUE(apart);
  EXPECT_TRUE(apart->new_pidns);
  EXPECT_EQ(apart->first_pid, 4711);
  EXPECT_EQ(apart->proc, -1);
  auto moved =
      ParseOptions({"restore", "--log", "/l", "--job-dir", "/j", "--proc", "6", "--", "criu"});
  ASSERT_TRUE(moved);
  EXPECT_EQ(moved->proc, 6);
  EXPECT_FALSE(moved->new_pidns);
}

TEST(ShimOptionsTest, InvalidArgumentsAreRejected) {
  for (const std::vector<std::string>& args : std::initializer_list<std::vector<std::string>>{
           {},
           {"walk"},
           {"run"},
           {"run", "--"},
           {"run", "--", "x"},
           {"run", "--job-dir", "/j", "--", "x"},
           {"run", "--job-dir", "/j", "--log", "/l"},
           {"run", "--job-dir", "/j", "--log", "/l", "--"},
           {"run", "--job-dir", "/j", "--log", "/l", "--what", "1", "--", "x"},
           {"run", "--job-dir", "/j", "--log", "/l", "--env", "A", "--", "x"},
           {"run", "--job-dir", "/j", "--log", "/l", "--env", "=1", "--", "x"},
           {"run", "--job-dir", "/j", "--log", "/l", "--new-pidns", "2", "--", "x"},
           {"run", "--job-dir", "/j", "--log", "/l", "--terminal", "24", "--", "x"},
           {"run", "--job-dir", "/j", "--log", "/l", "--terminal", "24x80x1", "--", "x"},
           {"run", "--job-dir", "/j", "--log", "/l", "--terminal", "70000x80", "--", "x"},
           {"run", "--job-dir", "/j", "--log", "/l", "--keep-log", "-1", "--", "x"},
           {"restore", "--job-dir", "/j", "--log", "/l", "--input", "5", "--", "x"},
           {"restore", "--job-dir", "/j", "--log", "/l", "--new-pidns", "x", "--", "x"},
           {"restore", "--job-dir", "/j", "--log", "/l", "--fd", "3", "--", "x"},
           {"restore", "--job-dir", "/j", "--log", "/l", "--fd", "a=1", "--", "x"},
           {"restore", "--job-dir", "/j", "--log", "/l", "--fd", "1=-1", "--", "x"}}) {
    EXPECT_FALSE(ParseOptions(args)) << ::testing::PrintToString(args);
  }
}

}  // namespace
}  // namespace stasis::shim
