// Tests each parser of a file in /proc or /sys with a private root: valid content, invalid content,
// and a missing file.
#include "health/host_files.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include "base/file.h"

namespace stasis::health {
namespace {

class HostFiles : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(::mkdtemp(folder_), nullptr); }
  void TearDown() override { EXPECT_TRUE(RemoveTree(folder_)); }

  void Put(const std::string& path, const std::string& text) {
    const std::string full = root() + path;
    ASSERT_TRUE(MakeDirs(full.substr(0, full.rfind('/'))));
    ASSERT_TRUE(ReplaceFile(full, text));
  }
  std::string root() const { return folder_; }

 private:
  char folder_[64] = "/tmp/stasis-host-files.XXXXXX";
};

constexpr process::HostPid kPid{4711};
const std::string kTooLong(2u << 20, '7');

TEST_F(HostFiles, Memory) {
  EXPECT_FALSE(ReadMemory(root()));
  Put("/proc/meminfo",
      "MemTotal:       16000 kB\nMemAvailable:    8000 kB\nHugePages_Total:      12\n"
      "HugePages_Free:        5\nHugepagesize:       2048 kB\n");
  auto memory = ReadMemory(root());
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory->available_bytes, 8000u << 10);
  EXPECT_EQ(memory->huge_page_bytes, 2u << 20);
  EXPECT_EQ(memory->huge_pages, 12u);
  EXPECT_EQ(memory->huge_pages_free, 5u);
  for (const char* bad : {"", "MemTotal: 1 kB\n", "MemAvailable: much\n", "MemAvailable:\n",
                          "MemAvailable: 99999999999999999999999999 kB\n",
                          "MemAvailable: 18446744073709551615 kB\n"}) {
    Put("/proc/meminfo", bad);
    EXPECT_FALSE(ReadMemory(root())) << bad;
  }
  Put("/proc/meminfo", "MemAvailable: 1 kB\n" + kTooLong);
  EXPECT_FALSE(ReadMemory(root()));
}

TEST_F(HostFiles, HugePagePolicy) {
  const std::string path = "/sys/kernel/mm/transparent_hugepage/enabled";
  EXPECT_FALSE(ReadHugePagePolicy(root(), "enabled"));
  Put(path, "always [madvise] never\n");
  EXPECT_EQ(ReadHugePagePolicy(root(), "enabled"), "madvise");
  for (const char* bad : {"", "always madvise never\n", "[", "]always[", "[]"}) {
    Put(path, bad);
    EXPECT_FALSE(ReadHugePagePolicy(root(), "enabled")) << bad;
  }
}

TEST_F(HostFiles, PtraceScope) {
  EXPECT_FALSE(ReadPtraceScope(root()));
  const std::string path = "/proc/sys/kernel/yama/ptrace_scope";
  for (int scope : {0, 1, 2, 3}) {
    Put(path, std::to_string(scope) + "\n");
    EXPECT_EQ(ReadPtraceScope(root()), scope);
  }
  for (const char* bad : {"", "4\n", "-1\n", "x\n"}) {
    Put(path, bad);
    EXPECT_FALSE(ReadPtraceScope(root())) << bad;
  }
}

TEST_F(HostFiles, UserNamespace) {
  EXPECT_FALSE(IsMachinesUserNamespace(root()));
  Put("/proc/self/uid_map", "         0          0 4294967295\n");
  EXPECT_EQ(IsMachinesUserNamespace(root()), true);
  Put("/proc/self/uid_map", "         0       1000          1\n");
  EXPECT_EQ(IsMachinesUserNamespace(root()), false);
  Put("/proc/self/uid_map", "         0          0      65536\n    65536 65536 100\n");
  EXPECT_EQ(IsMachinesUserNamespace(root()), false);
  Put("/proc/self/uid_map", "0 0\n");
  EXPECT_FALSE(IsMachinesUserNamespace(root()));
}

TEST(HostFilesTest, KernelVersion) {
  EXPECT_EQ(ParseKernelVersion("6.1.0-18-amd64"), (KernelVersion{6, 1}));
  EXPECT_EQ(ParseKernelVersion("5.10"), (KernelVersion{5, 10}));
  EXPECT_LT(*ParseKernelVersion("5.9.1"), *ParseKernelVersion("5.10.0"));
  for (const char* bad : {"", "6", "6.", "x.1", "99999999999999999999.1", "6.99999"}) {
    EXPECT_FALSE(ParseKernelVersion(bad)) << bad;
  }
}

TEST_F(HostFiles, OfAProcess) {
  EXPECT_FALSE(ReadLockedBytes(root(), kPid));
  EXPECT_FALSE(ReadVariable(root(), kPid, "A"));
  EXPECT_FALSE(CountWatches(root(), kPid, 3));
  EXPECT_FALSE(IsTimerRunning(root(), kPid, 3));
  EXPECT_TRUE(ReadThreadNames(root(), kPid).empty());

  Put("/proc/4711/status", "Name:\tx\nVmLck:\t      64 kB\n");
  EXPECT_EQ(ReadLockedBytes(root(), kPid), 64u << 10);
  Put("/proc/4711/environ", std::string("AB=1\0A=two\0A=three\0C", 20));
  EXPECT_EQ(ReadVariable(root(), kPid, "A"), "two");
  EXPECT_EQ(ReadVariable(root(), kPid, "AB"), "1");
  EXPECT_FALSE(ReadVariable(root(), kPid, "C"));
  Put("/proc/4711/fdinfo/3",
      "pos:\t0\nflags:\t00\ninotify wd:2 ino:1 sdev:1 mask:fce\ninotify wd:1 ino:2 sdev:1\n");
  EXPECT_EQ(CountWatches(root(), kPid, 3), 2u);
  Put("/proc/4711/task/4711/comm", "python3\n");
  Put("/proc/4711/task/4712/comm", "pt_nccl_watchdg\n");
  EXPECT_EQ(ReadThreadNames(root(), kPid).size(), 2u);
}

TEST_F(HostFiles, Timer) {
  const std::string path = "/proc/4711/fdinfo/4";
  auto of = [&](const std::string& value) {
    Put(path, "pos:\t0\nclockid: 1\nticks: 0\nit_value: " + value + "\nit_interval: (0, 0)\n");
    return IsTimerRunning(root(), kPid, 4);
  };
  EXPECT_EQ(of("(0, 0)"), false);
  EXPECT_EQ(of("(0, 4711)"), true);
  EXPECT_EQ(of("(12, 0)"), true);
  for (const char* bad : {"", "(", "(x, 0)", "(1", "(1,", "(99999999999999999999, 0)"}) {
    EXPECT_FALSE(of(bad)) << bad;
  }
}

}  // namespace
}  // namespace stasis::health
