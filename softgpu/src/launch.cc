// Kernel launches, and queries about functions.

#include <stdio.h>
#include <string.h>

#include "api.h"
#include "context.h"
#include "driver.h"
#include "library.h"

namespace softgpu {
namespace {

using Lock = std::lock_guard<std::mutex>;

constexpr unsigned kMaxThreads = 1024;
constexpr int kMaxShared = 227 * 1024;

// The parameters of a launch, kept until the kernel has run.
struct Arguments {
  std::vector<char> bytes;
  std::vector<void*> pointers;
  std::vector<char> shared;
};

struct Offsets {
  std::vector<size_t> at;
  size_t total = 0;
};

Offsets OffsetsOf(const Kernel& kernel) {
  Offsets offsets;
  for (uint32_t i = 0; i < kernel.parameter_count; ++i) {
    offsets.total = RoundUp(offsets.total, kernel.parameter_alignments[i]);
    offsets.at.push_back(offsets.total);
    offsets.total += kernel.parameter_sizes[i];
  }
  return offsets;
}

CUresult ReadExtra(void** extra, const void** buffer, size_t* bytes) {
  for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) {
      *buffer = extra[1];
    } else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE) {
      *bytes = *static_cast<size_t*>(extra[1]);
    } else {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  return *buffer != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CopyParameters(const Kernel& kernel, void** params, void** extra, Arguments* out) {
  Offsets offsets = OffsetsOf(kernel);
  out->bytes.resize(offsets.total + 16);
  char* base = out->bytes.data();
  base += RoundUp(reinterpret_cast<uintptr_t>(base), 16) - reinterpret_cast<uintptr_t>(base);
  if (params != nullptr && extra != nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (kernel.parameter_count > 0 && params == nullptr) {
    const void* buffer = nullptr;
    size_t bytes = 0;
    if (extra == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult r = ReadExtra(extra, &buffer, &bytes); r != CUDA_SUCCESS) return r;
    if (bytes < offsets.total) return CUDA_ERROR_INVALID_VALUE;
    memcpy(base, buffer, offsets.total);
  }
  for (uint32_t i = 0; i < kernel.parameter_count; ++i) {
    char* at = base + offsets.at[i];
    if (params != nullptr) memcpy(at, params[i], kernel.parameter_sizes[i]);
    out->pointers.push_back(at);
  }
  return CUDA_SUCCESS;
}

CUresult LaunchOn(CUstream stream, CUfunction handle, Dim3 grid, Dim3 block, unsigned shared,
                  void** params, void** extra) {
  auto arguments = std::make_shared<Arguments>();
  const Image* image = nullptr;
  const Kernel* kernel = nullptr;
  {
    Lock lock(driver().mutex);
    Function* function = nullptr;
    if (CUresult r = ResolveFunction(handle, &function); r != CUDA_SUCCESS) return r;
    uint64_t threads = uint64_t(block.x) * block.y * block.z;
    if (threads == 0 || threads > kMaxThreads || uint64_t(grid.x) * grid.y * grid.z == 0 ||
        grid.y > 65535 || grid.z > 65535 || block.z > 64) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (int64_t(shared) > function->max_dynamic_shared) return CUDA_ERROR_INVALID_VALUE;
    image = function->module->image;
    kernel = function->kernel;
    if (CUresult r = CopyParameters(*kernel, params, extra, arguments.get()); r != CUDA_SUCCESS) {
      return r;
    }
  }
  arguments->shared.resize(shared);
  return Submit(stream, [=] {
    Launch launch{grid, block, arguments->pointers.data(), arguments->shared.data()};
    if (int error = image->run(kernel, &launch)) {
      dprintf(2, "softgpu: cannot run kernel %s: %s\n", kernel->name, strerror(error));
      abort();  // a sticky error on a real GPU; this process cannot continue
    }
  });
}

}  // namespace

namespace api {

CUresult cuLaunchKernel(CUfunction f, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                        unsigned int block_x, unsigned int block_y, unsigned int block_z,
                        unsigned int shared, CUstream stream, void** params, void** extra) {
  return LaunchOn(stream, f, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared, params,
                  extra);
}

CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int grid_x, unsigned int grid_y,
                                   unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                   unsigned int block_z, unsigned int shared, CUstream stream,
                                   void** params) {
  return cuLaunchKernel(f, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream,
                        params, nullptr);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction f, void** params, void** extra) {
  if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    switch (config->attrs[i].id) {
      case CU_LAUNCH_ATTRIBUTE_IGNORE:
      case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
      case CU_LAUNCH_ATTRIBUTE_PRIORITY:
        break;
      default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
  }
  return LaunchOn(config->hStream, f, {config->gridDimX, config->gridDimY, config->gridDimZ},
                  {config->blockDimX, config->blockDimY, config->blockDimZ}, config->sharedMemBytes,
                  params, extra);
}

namespace {

// Calls `f` with the kernel function of `handle` while holding the lock.
template <class F>
CUresult With(CUfunction handle, F f) {
  Lock lock(driver().mutex);
  Function* function = nullptr;
  if (CUresult r = ResolveFunction(handle, &function); r != CUDA_SUCCESS) return r;
  return f(function);
}

}  // namespace

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction handle) {
  if (value == nullptr || attribute >= CU_FUNC_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
  return With(handle, [&](Function* function) {
    switch (attribute) {
      case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *value = int(kMaxThreads);
        break;
      case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        *value = function->max_dynamic_shared;
        break;
      case CU_FUNC_ATTRIBUTE_NUM_REGS:
        *value = 32;
        break;
      case CU_FUNC_ATTRIBUTE_PTX_VERSION:
      case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
        *value = 90;
        break;
      default:
        *value = 0;
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value) {
  return With(handle, [&](Function* function) {
    if (attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT) return CUDA_SUCCESS;
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
      return CUDA_ERROR_NOT_SUPPORTED;
    if (value < 0 || value > kMaxShared) return CUDA_ERROR_INVALID_VALUE;
    function->max_dynamic_shared = value;
    return CUDA_SUCCESS;
  });
}

CUresult cuFuncSetCacheConfig(CUfunction handle, CUfunc_cache) {
  return With(handle, [](Function*) { return CUDA_SUCCESS; });
}
CUresult cuFuncSetSharedMemConfig(CUfunction handle, CUsharedconfig) {
  return With(handle, [](Function*) { return CUDA_SUCCESS; });
}
CUresult cuFuncLoad(CUfunction handle) {
  return With(handle, [](Function*) { return CUDA_SUCCESS; });
}

CUresult cuFuncIsLoaded(CUfunctionLoadingState* state, CUfunction handle) {
  if (state == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *state = CU_FUNCTION_LOADING_STATE_LOADED;
  return With(handle, [](Function*) { return CUDA_SUCCESS; });
}

CUresult cuFuncGetModule(CUmodule* module, CUfunction handle) {
  if (module == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return With(handle, [&](Function* function) {
    *module = reinterpret_cast<CUmodule>(function->module);
    return CUDA_SUCCESS;
  });
}

CUresult cuFuncGetName(const char** name, CUfunction handle) {
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return With(handle, [&](Function* function) {
    *name = function->name.c_str();
    return CUDA_SUCCESS;
  });
}

CUresult cuFuncGetParamInfo(CUfunction handle, size_t index, size_t* offset, size_t* size) {
  return With(handle, [&](Function* function) {
    const Kernel& kernel = *function->kernel;
    if (index >= kernel.parameter_count || offset == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *offset = OffsetsOf(kernel).at[index];
    if (size != nullptr) *size = kernel.parameter_sizes[index];
    return CUDA_SUCCESS;
  });
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction handle, int block_size,
                                                     size_t) {
  if (blocks == nullptr || block_size <= 0) return CUDA_ERROR_INVALID_VALUE;
  return With(handle, [&](Function*) {
    *blocks = block_size > int(kMaxThreads) ? 0 : std::min(32, 2048 / block_size);
    return CUDA_SUCCESS;
  });
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, CUfunction handle,
                                                              int block_size, size_t shared,
                                                              unsigned int) {
  return cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, handle, block_size, shared);
}

CUresult cuOccupancyMaxPotentialBlockSize(int* grid, int* block, CUfunction handle,
                                          CUoccupancyB2DSize, size_t, int limit) {
  if (grid == nullptr || block == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return With(handle, [&](Function*) {
    *block = limit > 0 ? std::min(limit, int(kMaxThreads)) : int(kMaxThreads);
    *grid = std::min(32, 2048 / *block);
    return CUDA_SUCCESS;
  });
}

CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int* grid, int* block, CUfunction handle,
                                                   CUoccupancyB2DSize of, size_t shared, int limit,
                                                   unsigned int) {
  return cuOccupancyMaxPotentialBlockSize(grid, block, handle, of, shared, limit);
}

CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, CUfunction handle, int, int) {
  if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *bytes = 48 * 1024;
  return With(handle, [](Function*) { return CUDA_SUCCESS; });
}

}  // namespace api
}  // namespace softgpu
