// A program with GPU memory, as the agent makes it: VMM handles that can be exported. Lives in the
// test's own process; the mover is another one. Also what the tests of the data plane share.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/paths.h"
#include "dataplane/arena.h"
#include "dataplane/mover_client.h"
#include "device/cuda/driver_abi.h"

namespace stasis::dataplane::testing {

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

// The driver under test: softgpu, or what STASIS_TEST_DRIVER names.
std::string DriverPath();
bool OnSoftgpu();

struct GpuOfTest {
  int ordinal;
  device::GpuUuid uuid;
};
// Starts the driver in this process once; at least one GPU.
const std::vector<GpuOfTest>& Gpus();
uint64_t FreeGpuBytes(int ordinal);
// The same, given some seconds to become `expected`: what a killed process held is given back by
// others, after it.
uint64_t FreeGpuBytesSoon(int ordinal, uint64_t expected);

// One program's memory on one GPU.
class DriverAgent {
 public:
  explicit DriverAgent(int ordinal = 0);
  ~DriverAgent() { Release(); }

  // Allocations of these sizes, filled with bytes that depend on `seed`.
  void Create(const std::vector<uint64_t>& sizes, uint64_t seed);
  std::vector<Range> ranges() const;  // laid out
  std::vector<UniqueFd> Export();
  // Of all of it, side by side.
  void Clear(uint64_t offset, uint64_t bytes);
  std::string Read(uint64_t offset, uint64_t bytes);
  // Unmaps and releases: from here on only descriptors keep the memory.
  void Release();
  // Takes memory back, in order, at new addresses. Keeps the descriptors, since who has imported
  // memory cannot export it again.
  void TakeBack(const std::vector<UniqueFd>& fds);
  // All bytes are as they were filled; those of `zero` are zero instead.
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

// Folders that are gone afterwards, a store in a tmpfs, movers.
class DataplaneTest : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  ArenaStore OpenStore(ArenaOptions options = {});
  MoverOptions OptionsFor(int ordinal) const;
  ArenaKey KeyOf(int ordinal) const;
  // Rules for one process of softgpu; an empty string ends them.
  void Fault(pid_t pid, const std::string& rules);

  std::string memory_dir_;  // in a tmpfs
  std::string disk_dir_;
  Paths paths_;
};

}  // namespace stasis::dataplane::testing
