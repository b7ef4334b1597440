// GPU memory of a save or load: imported or created handles, mapped contiguously so that copies can
// ignore their boundaries. Runs only in the mover's process.
#pragma once

#include <cstdint>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "dataplane/gpu.h"

namespace stasis::dataplane {

// Returns the smallest multiple of `unit` that is at least `bytes`.
uint64_t RoundUp(uint64_t bytes, uint64_t unit);

class DeviceMemory {
 public:
  explicit DeviceMemory(const Gpu& gpu) : gpu_(gpu) {}
  ~DeviceMemory() { (void)Free(); }
  DeviceMemory(const DeviceMemory&) = delete;

  // Reserves addresses for `bytes`.
  Status Reserve(uint64_t bytes);
  // Import and Create append a handle. Import trusts neither the descriptor nor the size, and
  // returns kInvalidArgument for anything but shared memory of this GPU with exactly that size. The
  // caller keeps the descriptor.
  Status Import(int fd, uint64_t bytes);
  Status Create(uint64_t bytes);
  // Makes all handles accessible. Call after the last one; repeated calls are harmless.
  Status Open();
  Result<UniqueFd> Export(size_t index) const;
  // Allocates the ballast, which is not mapped. FreeBallast() frees it when the driver's restore
  // needs the memory.
  Status CreateBallast(uint64_t bytes);
  Status FreeBallast();
  // Frees everything. Continues after an error and returns the first one.
  Status Free();

  cu::CUdeviceptr base() const { return base_; }
  size_t count() const { return handles_.size(); }

 private:
  Status Append(cu::CUmemGenericAllocationHandle handle, uint64_t bytes);
  Status CheckSize(uint64_t bytes) const;

  const Gpu& gpu_;
  cu::CUdeviceptr base_ = 0;
  uint64_t reserved_ = 0;
  uint64_t mapped_ = 0;
  std::vector<cu::CUmemGenericAllocationHandle> handles_;
  std::vector<cu::CUmemGenericAllocationHandle> ballast_;
};

}  // namespace stasis::dataplane
