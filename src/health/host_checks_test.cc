// Tests the findings for machine settings, with /proc and /sys of a simulated machine.
#include <gtest/gtest.h>
#include <stdlib.h>

#include "base/file.h"
#include "health/machine.h"

namespace stasis::health {
namespace {

class OtherMachine : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(::mkdtemp(folder_), nullptr);
    options_.root = folder_;
    Put("/proc/meminfo", "MemAvailable: 8388608 kB\nHugePages_Free: 0\nHugepagesize: 2048 kB\n");
  }
  void TearDown() override { EXPECT_TRUE(RemoveTree(folder_)); }

  void Put(const std::string& path, const std::string& text) {
    const std::string full = options_.root + path;
    ASSERT_TRUE(MakeDirs(full.substr(0, full.rfind('/'))));
    ASSERT_TRUE(ReplaceFile(full, text));
  }
  // Returns the findings of `check` as "id level".
  std::string Found(Check check, std::vector<device::Gpu> gpus = {}) {
    const Machine machine{options_, device::DriverInfo{}, std::move(gpus)};
    Findings findings;
    check(machine, findings);
    std::string text;
    for (const Finding& finding : findings) {
      text += (text.empty() ? "" : ", ") + std::string(finding.kind->id) + " " +
              std::string(LevelName(finding.level));
      EXPECT_NE(finding.found, "");
      EXPECT_EQ(finding.level >= Level::kWarning && finding.fix.empty(), false) << text;
    }
    return text;
  }

 private:
  char folder_[64] = "/tmp/stasis-machine.XXXXXX";

 protected:
  MachineOptions options_{{}, "", "", Fail(Code::kNotFound, "none"), false};
};

TEST_F(OtherMachine, PtraceScope) {
  EXPECT_EQ(Found(CheckPtraceScope), "ptrace-scope ok") << "Yama is not enabled in this kernel";
  Put("/proc/sys/kernel/yama/ptrace_scope", "0\n");
  EXPECT_EQ(Found(CheckPtraceScope), "ptrace-scope ok");
  Put("/proc/sys/kernel/yama/ptrace_scope", "1\n");
  constexpr int kSysPtrace = 19;
  const bool root = HasCapability(kSysPtrace);
  EXPECT_EQ(Found(CheckPtraceScope), root ? "ptrace-scope ok" : "ptrace-scope warning");
  Put("/proc/sys/kernel/yama/ptrace_scope", "3\n");
  EXPECT_EQ(Found(CheckPtraceScope), "ptrace-scope cannot");
}

TEST_F(OtherMachine, VectorRegisters) {
  EXPECT_EQ(Found(CheckVectorRegisters), "") << "/proc/cpuinfo is missing";
  Put("/proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu avx2 avx512f\n");
  EXPECT_EQ(Found(CheckVectorRegisters), "") << "an x86 processor";
  Put("/proc/cpuinfo", "processor\t: 0\nFeatures\t: fp asimd svebf16 smei8i32\n");
  EXPECT_EQ(Found(CheckVectorRegisters), "vector-registers ok") << "parts of names";
  Put("/proc/cpuinfo", "processor\t: 0\nFeatures\t: fp asimd sve sve2 bti\n");
  EXPECT_EQ(Found(CheckVectorRegisters), "vector-registers warning");
  Put("/proc/cpuinfo", "processor\t: 0\nFeatures\t: fp sme\n\nprocessor\t: 1\n");
  EXPECT_EQ(Found(CheckVectorRegisters), "vector-registers warning");
}

TEST_F(OtherMachine, UserNamespace) {
  Put("/proc/self/uid_map", "0 0 4294967295\n");
  EXPECT_EQ(Found(CheckUserNamespace), "user-namespace ok");
  Put("/proc/self/uid_map", "0 1000 1\n");
  EXPECT_EQ(Found(CheckUserNamespace), "user-namespace warning");
}

TEST_F(OtherMachine, HugePages) {
  const std::string folder = "/sys/kernel/mm/transparent_hugepage/";
  Put(folder + "enabled", "[always] madvise never\n");
  Put(folder + "shmem_enabled", "always within_size advise [never] deny force\n");
  EXPECT_EQ(Found(CheckHugePages), "huge-pages ok, reserved-huge-pages ok");
  Put(folder + "enabled", "always [madvise] never\n");
  EXPECT_EQ(Found(CheckHugePages), "huge-pages note, reserved-huge-pages ok");
  Put(folder + "shmem_enabled", "always within_size advise never [deny] force\n");
  EXPECT_EQ(Found(CheckHugePages), "huge-pages warning, reserved-huge-pages ok");
  Put("/proc/meminfo",
      "MemAvailable: 1 kB\nHugePages_Total: 4096\nHugePages_Free: 4096\nHugepagesize: 2048 kB\n");
  EXPECT_EQ(Found(CheckHugePages), "huge-pages warning, reserved-huge-pages warning");
}

TEST_F(OtherMachine, Memory) {
  device::Gpu gpu;
  gpu.total_bytes = 4ull << 30;
  gpu.free_bytes = 4ull << 30;
  EXPECT_EQ(Found(CheckMemory, {gpu}), "host-memory ok");
  gpu.total_bytes = 16ull << 30;
  gpu.free_bytes = 12ull << 30;
  EXPECT_EQ(Found(CheckMemory, {gpu}), "host-memory note") << "what is used fits";
  gpu.free_bytes = 1ull << 30;
  EXPECT_EQ(Found(CheckMemory, {gpu}), "host-memory warning");
  Put("/proc/meminfo", "");
  EXPECT_EQ(Found(CheckMemory, {gpu}), "host-memory warning");
}

// Needs a simulated machine because NVML reports persistence, and softgpu has no NVML.
TEST_F(OtherMachine, PersistenceAndRoomOfGpus) {
  device::Gpu gpu;
  gpu.total_bytes = 80ull << 30;
  gpu.free_bytes = 80ull << 30;
  EXPECT_EQ(Found(CheckGpus, {}), "gpus cannot");
  EXPECT_EQ(Found(CheckGpus, {gpu}), "gpus ok, persistence note, gpu-memory-free ok");
  gpu.persistence = true;
  EXPECT_EQ(Found(CheckGpus, {gpu}), "gpus ok, persistence ok, gpu-memory-free ok");
  gpu.persistence = false;
  gpu.free_bytes = 400u << 20;
  EXPECT_EQ(Found(CheckGpus, {gpu}), "gpus ok, persistence warning, gpu-memory-free note");
  gpu.free_bytes = 100u << 20;
  EXPECT_EQ(Found(CheckGpus, {gpu}), "gpus ok, persistence warning, gpu-memory-free warning");
}

}  // namespace
}  // namespace stasis::health
