#include "process/memory_writer.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

namespace stasis::process {
namespace {

constexpr size_t kBytes = 3 << 20;

// A stopped child whose memory the test writes. It compares the memory when it is continued.
TEST(MemWriter, WritesToAStoppedProcess) {
  const std::string text(kBytes - 10, 'x');
  char* memory = static_cast<char*>(
      ::mmap(nullptr, kBytes + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_EQ(::munmap(memory + kBytes, 4096), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::raise(SIGSTOP);
    bool right = memory[4] == 0 && memory[5 + text.size()] == 0;
    for (size_t i = 0; i < text.size(); ++i) right &= memory[5 + i] == 'x';
    ::_exit(right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
  MemWriter writer;
  const auto at = reinterpret_cast<uint64_t>(memory);
  if (!MemWriter::MayWrite()) {
    ::kill(child, SIGKILL);
    ::waitpid(child, &status, 0);
    GTEST_SKIP() << "this user may not write to other processes";
  }
  const ProcessId id = ReadStat({child})->id;
  ASSERT_TRUE(writer.Open(id));
  Status written = writer.Write({child}, at + 5, text);
  EXPECT_TRUE(written) << written.error().ToString();
  Status beyond = writer.Write({child}, at + kBytes - 5, text);
  EXPECT_FALSE(beyond) << "memory that is not mapped";
  EXPECT_TRUE(writer.Write({child}, at + kBytes - 5, std::string(5, '\0')));
  ::kill(child, SIGCONT);
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(writer.Write({child}, at, text)) << "the process has ended";
  EXPECT_FALSE(writer.Open(id));
  // Another process with its id.
  EXPECT_FALSE(writer.Open({{::getpid()}, id.start_time}));
  ::munmap(memory, kBytes);
}

}  // namespace
}  // namespace stasis::process
