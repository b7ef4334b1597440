#include "checkpoint/program_pids.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace stasis::checkpoint {
namespace {

store::Manifest With(const std::vector<pid_t>& numbers) {
  store::Manifest manifest;
  for (pid_t number : numbers) {
    store::Process process;
    process.pid = 1'000'000 + number;  // identifies the process in the image only
    process.namespace_pid = number;
    manifest.processes.push_back(process);
  }
  return manifest;
}

TEST(ProgramPidsTest, WithoutANamespacePidThePidIsRestored) {
  store::Process process;
  process.pid = 4711;
  EXPECT_EQ(process.restored_pid(), 4711);
  process.namespace_pid = 12;
  EXPECT_EQ(process.restored_pid(), 12);
}

TEST(ProgramPidsTest, OnlyProcessesOfTheTreeAreFound) {
  auto tree = process::ReadTree({::getpid()});
  ASSERT_TRUE(tree) << tree.error().ToString();
  store::Process process;
  process.pid = ::getpid();
  EXPECT_TRUE(FindRestored(process, *tree));
  process.pid = ::getppid();
  auto found = FindRestored(process, *tree);
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, Code::kDataLoss);
}

// The smallest possible pid_max leaves space on both sides.
TEST(ProgramPidsTest, CriuIsFarFromAllOfThem) {
  for (const auto& numbers : std::vector<std::vector<pid_t>>{
           {}, {2}, {2, 3, 4, 5}, {30000}, {2, 16000}, {16000, 17000}, {5, 32767}}) {
    const pid_t criu = PidForCriu(With(numbers));
    EXPECT_GT(criu, 1);
    for (pid_t number : numbers) EXPECT_GT(std::abs(criu - number), 7000) << criu;
  }
}

}  // namespace
}  // namespace stasis::checkpoint
