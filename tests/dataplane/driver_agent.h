// A program with GPU memory like that made by the agent: VMM handles that can be exported. It lives
// in the test's process; the mover is a separate process. Also has helpers for other tests of the
// data plane.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "abi/cuda/driver_abi.h"
#include "base/fd.h"
#include "base/paths.h"
#include "dataplane/arena.h"
#include "dataplane/mover_client.h"

namespace stasis::dataplane::testing {

inline constexpr uint64_t kMib = 1 << 20;

#define ASSERT_DONE(expression)                                                     \
  do {                                                                              \
    auto&& done = (expression);                                                     \
    ASSERT_TRUE(done) << #expression ": " << (done ? "" : done.error().ToString()); \
  } while (0)
#define EXPECT_DONE(expression)                                                     \
  do {                                                                              \
    auto&& done = (expression);                                                     \
    EXPECT_TRUE(done) << #expression ": " << (done ? "" : done.error().ToString()); \
  } while (0)
#define EXPECT_REFUSED(code_, expression)                                               \
  do {                                                                                  \
    auto&& done = (expression);                                                         \
    ASSERT_FALSE(done) << #expression " was not refused";                               \
    EXPECT_EQ(CodeName(done.error().code), CodeName(code_)) << done.error().ToString(); \
  } while (0)

// Returns the driver under test: softgpu, or $STASIS_TEST_DRIVER.
std::string DriverPath();
bool OnSoftgpu();

struct GpuOfTest {
  int ordinal;
  device::GpuUuid uuid;
};
// Starts the driver in this process once. There is at least one GPU.
const std::vector<GpuOfTest>& Gpus();
uint64_t FreeGpuBytes(int ordinal);
// Waits some seconds for the free memory to become `expected`, because memory of a killed process
// is freed after its end.
uint64_t FreeGpuBytesSoon(int ordinal, uint64_t expected);

// The memory of one program on one GPU.
class DriverAgent {
 public:
  explicit DriverAgent(int ordinal = 0);
  ~DriverAgent() { Release(); }

  // Creates allocations of these sizes, filled depending on `seed`.
  void Create(const std::vector<uint64_t>& sizes, uint64_t seed);
  std::vector<Range> ranges() const;  // laid out
  std::vector<UniqueFd> Export();
  // Clears a part of the contiguously mapped memory.
  void Clear(uint64_t offset, uint64_t bytes);
  std::string Read(uint64_t offset, uint64_t bytes);
  // Unmaps and releases everything, so that only descriptors keep the memory.
  void Release();
  // Imports memory in order, at new addresses. Keeps the descriptors, because imported memory
  // cannot be exported again.
  void TakeBack(const std::vector<UniqueFd>& fds);
  // Checks that all bytes have their original values, and that allocations in `zero` are zero.
  void Verify(const std::vector<size_t>& zero = {});

 private:
  void Map(const std::vector<stasis::cuda::CUmemGenericAllocationHandle>& handles);

  int ordinal_;
  uint64_t seed_ = 0;
  std::vector<uint64_t> sizes_;
  std::vector<stasis::cuda::CUmemGenericAllocationHandle> handles_;
  std::vector<UniqueFd> kept_;  // of imported memory
  stasis::cuda::CUdeviceptr base_ = 0;
  uint64_t total_ = 0;
  bool held_ = false;
};

std::vector<int> Raw(const std::vector<UniqueFd>& fds);
inline Deadline Soon() { return Deadline::In(std::chrono::seconds(60)); }

// Temporary directories, a store on a tmpfs, and movers.
class DataplaneTest : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  ArenaStore OpenStore(ArenaOptions options = {});
  MoverOptions OptionsFor(int ordinal) const;
  ArenaKey KeyOf(int ordinal) const;
  // Sets the fault rules of one softgpu process; an empty string clears them.
  void Fault(pid_t pid, const std::string& rules);

  std::string memory_dir_;  // on a tmpfs
  std::string disk_dir_;
  Paths paths_;
};

}  // namespace stasis::dataplane::testing
