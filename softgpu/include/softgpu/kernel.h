// The header of kernel files. A kernel file is built twice: as C++ for softgpu (CMake:
// softgpu_kernel_image()), and by nvcc, hipcc, or clang without a toolkit (-nogpuinc -nogpulib; no
// atomics), for real GPUs.
//
//   #include <softgpu/kernel.h>
//
//   __device__ int counter = 100;                 // a module global in device memory
//
//   STASIS_KERNEL(add, (int* out, int n)) {       // an extern "C" __global__ function
//     __shared__ int tile[256];
//     unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
//     tile[threadIdx.x] = i < n ? out[i] : 0;
//     __syncthreads();
//     ...
//   }
//
// A kernel without __syncthreads() may use STASIS_KERNEL_NO_BARRIER, which is much faster in
// softgpu and the same for nvcc. If such a kernel calls __syncthreads(), the program aborts. For
// dynamic shared memory, put STASIS_DYNAMIC_SHARED(type, name); in the kernel's body. Kernel
// parameters are passed by value and must be trivially copyable.
#pragma once

#if defined(__CUDACC__) || (defined(__HIP__) && __has_include(<hip/hip_runtime.h>))

#if defined(__HIP__)
#include <hip/hip_runtime.h>
#endif

#define STASIS_KERNEL(name, parameters) extern "C" __global__ void name parameters
#define STASIS_KERNEL_NO_BARRIER(name, parameters) extern "C" __global__ void name parameters
#define STASIS_DYNAMIC_SHARED(type, name) extern __shared__ type name[]

#elif defined(__CUDA__) || defined(__HIP__)

#include <stdint.h>

// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming): CUDA's own names
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __host__ __attribute__((host))
#define __constant__ __attribute__((constant))
#define __shared__ __attribute__((shared))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))
#define STASIS_KERNEL(name, parameters) extern "C" __global__ void name parameters
#define STASIS_KERNEL_NO_BARRIER(name, parameters) extern "C" __global__ void name parameters
#define STASIS_DYNAMIC_SHARED(type, name) extern __shared__ type name[]

namespace softgpu {
struct Dim3 {
  unsigned x, y, z;
};
}  // namespace softgpu
#if defined(__HIP__)
#define SOFTGPU_AMD(name)                                                      \
  (softgpu::Dim3{__builtin_amdgcn_##name##_x(), __builtin_amdgcn_##name##_y(), \
                 __builtin_amdgcn_##name##_z()})
#define threadIdx SOFTGPU_AMD(workitem_id)
#define blockIdx SOFTGPU_AMD(workgroup_id)
#define blockDim SOFTGPU_AMD(workgroup_size)
#define gridDim                                                                        \
  (softgpu::Dim3{__builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x(), \
                 __builtin_amdgcn_grid_size_y() / __builtin_amdgcn_workgroup_size_y(), \
                 __builtin_amdgcn_grid_size_z() / __builtin_amdgcn_workgroup_size_z()})
#else
#define SOFTGPU_SPECIAL(name)                                 \
  (softgpu::Dim3{unsigned(__nvvm_read_ptx_sreg_##name##_x()), \
                 unsigned(__nvvm_read_ptx_sreg_##name##_y()), \
                 unsigned(__nvvm_read_ptx_sreg_##name##_z())})
#define threadIdx SOFTGPU_SPECIAL(tid)
#define blockIdx SOFTGPU_SPECIAL(ctaid)
#define blockDim SOFTGPU_SPECIAL(ntid)
#define gridDim SOFTGPU_SPECIAL(nctaid)
#endif
   // NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)

#else

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <type_traits>
#include <utility>

#include "softgpu/image.h"

// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming): CUDA's own names
#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
// A block runs on one host thread, so its shared memory is thread-local.
#define __shared__ static thread_local
#define STASIS_DYNAMIC_SHARED(type, name) type* name = static_cast<type*>(softgpu::Self().shared)

struct dim3 : softgpu::Dim3 {
  dim3(unsigned dx = 1, unsigned dy = 1, unsigned dz = 1) : softgpu::Dim3{dx, dy, dz} {}
};

// The symbols are hidden, because every image has its own copy of these functions.
namespace softgpu __attribute__((visibility("hidden"))) {

  // The built-in variables of one device thread.
  struct Thread {
    Dim3 thread_idx, block_idx, block_dim, grid_dim;
    void* shared = nullptr;
  };

  // Self() and Barrier() are defined in kernel/runtime.cc, which is part of every image.
  Thread& Self();
  void Barrier();

  template <class... A>
  struct Invoke {
    static_assert((__is_trivially_copyable(A) && ...),
                  "kernel parameters must be trivially copyable");
    static constexpr uint32_t kSizes[sizeof...(A) + 1] = {sizeof(A)..., 0};
    static constexpr uint32_t kAlignments[sizeof...(A) + 1] = {alignof(A)..., 0};
    static constexpr uint32_t kCount = sizeof...(A);

    template <void (*F)(A...)>
    static void Call(void** params) {
      [params]<size_t... I>(std::index_sequence<I...>) {
        (void)params;
        F(*static_cast<A*>(params[I])...);
      }(std::index_sequence_for<A...>{});
    }
  };

  template <class... A>
  Invoke<A...> InvokeOf(void (*)(A...));

}  // namespace softgpu

#define STASIS_KERNEL(name, parameters) STASIS_KERNEL_IMPL(name, parameters, 0)
#define STASIS_KERNEL_NO_BARRIER(name, parameters) \
  STASIS_KERNEL_IMPL(name, parameters, softgpu::kKernelNoBarrier)
#define STASIS_KERNEL_IMPL(name, parameters, flags)                                \
  extern "C" void name parameters;                                                 \
  static const softgpu::Kernel softgpu_kernel_##name = {                           \
      #name,                                                                       \
      &decltype(softgpu::InvokeOf(name))::Call<name>,                              \
      decltype(softgpu::InvokeOf(name))::kSizes,                                   \
      decltype(softgpu::InvokeOf(name))::kAlignments,                              \
      decltype(softgpu::InvokeOf(name))::kCount,                                   \
      flags};                                                                      \
  __attribute__((section("softgpu_kernels"),                                       \
                 used)) static const softgpu::Kernel* const softgpu_entry_##name = \
      &softgpu_kernel_##name;                                                      \
  extern "C" void name parameters

#define threadIdx (softgpu::Self().thread_idx)
#define blockIdx (softgpu::Self().block_idx)
#define blockDim (softgpu::Self().block_dim)
#define gridDim (softgpu::Self().grid_dim)
inline constexpr int warpSize = 32;

inline void __syncthreads() { softgpu::Barrier(); }
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

// Atomics return the old value, as in CUDA.
#define SOFTGPU_ATOMIC(name, builtin)                   \
  template <class T>                                    \
  inline T name(T* at, std::type_identity_t<T> value) { \
    return builtin(at, value, __ATOMIC_RELAXED);        \
  }
SOFTGPU_ATOMIC(atomicSub, __atomic_fetch_sub)
SOFTGPU_ATOMIC(atomicAnd, __atomic_fetch_and)
SOFTGPU_ATOMIC(atomicOr, __atomic_fetch_or)
SOFTGPU_ATOMIC(atomicXor, __atomic_fetch_xor)
#undef SOFTGPU_ATOMIC

namespace softgpu __attribute__((visibility("hidden"))) {
  template <class T, class F>
  inline T Update(T * at, F next) {
    T old;
    __atomic_load(at, &old, __ATOMIC_RELAXED);
    T desired = next(old);
    while (
        !__atomic_compare_exchange(at, &old, &desired, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
      desired = next(old);
    }
    return old;
  }
}  // namespace softgpu

template <class T>
inline T atomicAdd(T* at, std::type_identity_t<T> value) {
  return softgpu::Update(at, [&](T old) { return T(old + value); });
}
template <class T>
inline T atomicMax(T* at, std::type_identity_t<T> value) {
  return softgpu::Update(at, [&](T old) { return old < value ? value : old; });
}
template <class T>
inline T atomicMin(T* at, std::type_identity_t<T> value) {
  return softgpu::Update(at, [&](T old) { return value < old ? value : old; });
}
template <class T>
inline T atomicExch(T* at, std::type_identity_t<T> value) {
  return softgpu::Update(at, [&](T) { return value; });
}
template <class T>
inline T atomicCAS(T* at, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  T old = expected;
  __atomic_compare_exchange(at, &old, &value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return old;
}

// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)

#endif
