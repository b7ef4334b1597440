// The interface of a module image: a shared object that exports one descriptor. Used by softgpu's
// libcuda and by every image; raise kImageVersion when a layout here changes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace softgpu {

inline constexpr uint32_t kImageMagic = 0x53474955;  // "SGIU"
inline constexpr uint32_t kImageVersion = 1;
inline constexpr const char* kImageSymbol = "softgpu_image";

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};

// A flag: the kernel has no barrier, so the threads of a block may run one after the other.
inline constexpr uint32_t kKernelNoBarrier = 1;

struct Kernel {
  const char* name;
  void (*call)(void** params);  // runs one thread; params as in cuLaunchKernel
  const uint32_t* parameter_sizes;
  const uint32_t* parameter_alignments;
  uint32_t parameter_count;
  uint32_t flags;
};

struct Launch {
  Dim3 grid;
  Dim3 block;
  void** params;
  void* dynamic_shared;
};

struct Image {
  uint32_t magic;
  uint32_t version;
  const Kernel* const* begin;
  const Kernel* const* end;
  // Runs every thread of every block on the calling thread. Returns 0 or an errno.
  int (*run)(const Kernel* kernel, const Launch* launch);
};

}  // namespace softgpu
