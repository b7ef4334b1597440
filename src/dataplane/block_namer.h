// Names of blocks of GPU memory (image/block_name.h), computed where the memory is: by the kernel
// in kernel/block_names.cu, bit for bit as BlockKey::Name. Only in the mover's process.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "dataplane/gpu.h"
#include "dataplane/range.h"
#include "image/block_name.h"

namespace stasis::dataplane {

struct BlockNames {
  std::vector<image::Id128> names;  // range by range; zero for a block of zeros
  uint64_t zero_bytes = 0;          // in those
  uint64_t elapsed_ns = 0;          // on the GPU
};

class BlockNamer {
 public:
  explicit BlockNamer(const Gpu& gpu) : gpu_(gpu) {}
  BlockNamer(const BlockNamer&) = delete;

  // Loads the kernel at first, and takes the key. The driver compiles the kernel for the GPU that
  // is there, which takes it some 0.1 s where it has not kept the result; afterwards no more GPU
  // memory is needed than there is now. kUnimplemented: this driver cannot load it.
  Status Prepare(image::BlockKey key);
  // The key and what was named are gone from the GPU's memory.
  Status Forget();

  // Of all of `ranges`, which lie side by side from `base` on and are accessible; each is cut into
  // blocks of image::kBlockBytes, of which the last may be shorter. kFailedPrecondition without a
  // key.
  Result<BlockNames> Name(cu::CUdeviceptr base, const std::vector<Range>& ranges);

  // For a measurement: `bytes` of random numbers at `base`, which repeat after 64 MiB; and whether
  // the first and last names of them are what the processor finds.
  Status Fill(cu::CUdeviceptr base, uint64_t bytes);
  Status Check(cu::CUdeviceptr base, uint64_t bytes, const std::vector<image::Id128>& names);

 private:
  Status Load();
  Status Await();
  Status Upload(cu::CUdeviceptr to, const void* from, size_t bytes);

  const Gpu& gpu_;
  cu::CUfunction function_ = nullptr;
  cu::CUdeviceptr memory_ = 0;
  cu::CUstream stream_ = nullptr;
  cu::CUevent begin_ = nullptr;
  cu::CUevent end_ = nullptr;
  std::optional<image::BlockKey> key_;
};

}  // namespace stasis::dataplane
