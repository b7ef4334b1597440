// GPU memory of a save or a load: handles that are imported or created, side by side in one range
// of addresses, so that copies need not know where one ends. Only in the mover's process.
#pragma once

#include <cstdint>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "dataplane/gpu.h"

namespace stasis::dataplane {

class DeviceMemory {
 public:
  explicit DeviceMemory(const Gpu& gpu) : gpu_(gpu) {}
  ~DeviceMemory() { (void)Free(); }
  DeviceMemory(const DeviceMemory&) = delete;

  // Addresses for `bytes`.
  Status Reserve(uint64_t bytes);
  // Both append. Import believes neither the descriptor nor the size: kInvalidArgument for what is
  // not shared memory of this GPU, or not as large as said. The descriptor stays the caller's.
  Status Import(int fd, uint64_t bytes);
  Status Create(uint64_t bytes);
  // After the last one: makes it all accessible. Again is harmless.
  Status Open();
  Result<UniqueFd> Export(size_t index) const;
  // Memory that nobody maps, kept to be given back at the right moment.
  Status CreateBallast(uint64_t bytes);
  Status FreeBallast();
  // Lets go of everything; goes on after an error and returns the first.
  Status Free();

  cu::CUdeviceptr base() const { return base_; }
  size_t count() const { return handles_.size(); }
  uint64_t mapped_bytes() const { return mapped_; }

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
