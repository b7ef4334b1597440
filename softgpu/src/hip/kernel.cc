// Launches, and the kernels and variables that a program refers to by addresses in its own memory.
// Compiler-generated code registers them before main; their image is loaded at the first use.

#include <string.h>

#include <map>
#include <string>
#include <vector>

#include "hip/face.h"

namespace softgpu::hip {
namespace {

using Lock = std::lock_guard<std::mutex>;

constexpr uint32_t kWrapperMagic = 0x48495046;  // "HIPF"

// The layout that the compiler emits.
struct Wrapper {
  uint32_t magic;
  uint32_t version;
  const void* binary;
  void* unused;
};

// A registered image. Its address is what __hipRegisterFatBinary returns.
struct Binary {
  const void* image = nullptr;
  CUlibrary library = nullptr;  // null until the first use
};

struct Named {
  Binary* binary = nullptr;
  std::string name;
  size_t bytes = 0;  // of a variable
};

struct Registry {
  std::mutex mutex;
  std::map<const void*, Named> functions;
  std::map<const void*, Named> variables;
};

// Never destroyed, because the program unregisters its images after main.
Registry& registry() {
  static auto* all = new Registry;
  return *all;
}

Binary* BinaryOf(void** modules) { return reinterpret_cast<Binary*>(modules); }

// Finds the kernel or variable that is registered for an address, and loads its image if necessary.
hipError_t Find(std::map<const void*, Named> Registry::*table, const void* address,
                hipError_t missing, Named* out) {
  Lock lock(registry().mutex);
  auto& known = registry().*table;
  auto it = known.find(address);
  if (it == known.end() || it->second.binary == nullptr) return missing;
  Binary* binary = it->second.binary;
  if (binary->library == nullptr) {
    CUresult r = softgpu::api::cuLibraryLoadData(&binary->library, binary->image, nullptr, nullptr,
                                                 0, nullptr, nullptr, 0);
    if (r != CUDA_SUCCESS) return r;
  }
  *out = it->second;
  return CUDA_SUCCESS;
}

hipError_t FindFunction(const void* address, hipFunction_t* out) {
  Named found;
  hipError_t r = Find(&Registry::functions, address, hipErrorInvalidDeviceFunction, &found);
  if (r != CUDA_SUCCESS) return r;
  CUkernel kernel = nullptr;
  r = softgpu::api::cuLibraryGetKernel(&kernel, found.binary->library, found.name.c_str());
  if (r != CUDA_SUCCESS) return hipErrorInvalidDeviceFunction;
  return softgpu::api::cuKernelGetFunction(out, kernel);
}

hipError_t FindVariable(const void* address, CUdeviceptr* ptr, size_t* bytes) {
  Named found;
  hipError_t r = Find(&Registry::variables, address, hipErrorInvalidSymbol, &found);
  if (r != CUDA_SUCCESS) return r;
  return softgpu::api::cuLibraryGetGlobal(ptr, bytes, found.binary->library, found.name.c_str());
}

// Calls `f` with the function that is registered for an address.
template <class F>
hipError_t WithFunction(const void* address, F f) {
  hipFunction_t function = nullptr;
  if (hipError_t r = FindFunction(address, &function); r != CUDA_SUCCESS) return r;
  return f(function);
}

// Calls `f` with the address of a part of a variable.
template <class F>
hipError_t WithVariable(const void* symbol, size_t bytes, size_t offset, F f) {
  CUdeviceptr ptr = 0;
  size_t size = 0;
  if (hipError_t r = FindVariable(symbol, &ptr, &size); r != CUDA_SUCCESS) return r;
  if (offset > size || bytes > size - offset) return CUDA_ERROR_INVALID_VALUE;
  return f(reinterpret_cast<void*>(ptr + offset));
}

hipError_t Launch(const void* function, dim3 grid, dim3 block, void** params, size_t shared_bytes,
                  hipStream_t stream) {
  return WithFunction(function, [&](hipFunction_t f) {
    return softgpu::api::cuLaunchKernel(f, grid.x, grid.y, grid.z, block.x, block.y, block.z,
                                        unsigned(shared_bytes), stream, params, nullptr);
  });
}

// Launches a kernel between the records of two events. Either event may be null.
template <class F>
hipError_t Between(hipEvent_t start, hipEvent_t stop, hipStream_t stream, F launch) {
  if (start != nullptr) {
    if (CUresult r = softgpu::api::cuEventRecord(start, stream); r != CUDA_SUCCESS) return r;
  }
  if (hipError_t r = launch(); r != CUDA_SUCCESS) return r;
  return stop == nullptr ? CUDA_SUCCESS : softgpu::api::cuEventRecord(stop, stream);
}

struct Configuration {
  dim3 grid{1, 1, 1};
  dim3 block{1, 1, 1};
  size_t shared_bytes = 0;
  hipStream_t stream = nullptr;
  std::vector<char> arguments;  // of hipSetupArgument
};

// Calls nest: the arguments of a kernel may contain another launch.
thread_local std::vector<Configuration> t_configurations;

}  // namespace

namespace own {

// NOLINTBEGIN(bugprone-reserved-identifier): the names that the compiler calls

void** __hipRegisterFatBinary(const void* data) {
  const auto* wrapper = static_cast<const Wrapper*>(data);
  auto* binary = new Binary;
  if (wrapper->magic == kWrapperMagic) binary->image = wrapper->binary;
  return reinterpret_cast<void**>(binary);
}

void __hipUnregisterFatBinary(void** modules) {
  Binary* binary = BinaryOf(modules);
  Lock lock(registry().mutex);
  for (auto* table : {&registry().functions, &registry().variables}) {
    std::erase_if(*table, [&](const auto& item) { return item.second.binary == binary; });
  }
  delete binary;
}

void __hipRegisterFunction(void** modules, const void* host_function, char*,
                           const char* device_name, unsigned int, void*, void*, dim3*, dim3*,
                           int*) {
  Lock lock(registry().mutex);
  registry().functions[host_function] = {BinaryOf(modules), device_name, 0};
}

void __hipRegisterVar(void** modules, void* host_variable, char*, char* device_name, int,
                      size_t size, int, int) {
  Lock lock(registry().mutex);
  registry().variables[host_variable] = {BinaryOf(modules), device_name, size};
}

// Managed variables are not implemented. They are not registered, so their first use fails.
void __hipRegisterManagedVar(void**, void**, void*, const char*, size_t, unsigned int) {}

hipError_t __hipPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes,
                                      hipStream_t stream) {
  t_configurations.push_back({grid, block, shared_bytes, stream, {}});
  return CUDA_SUCCESS;
}

hipError_t __hipPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes,
                                     hipStream_t* stream) {
  if (t_configurations.empty()) return hipErrorMissingConfiguration;
  const Configuration& top = t_configurations.back();
  *grid = top.grid;
  *block = top.block;
  *shared_bytes = top.shared_bytes;
  *stream = top.stream;
  t_configurations.pop_back();
  return CUDA_SUCCESS;
}

// NOLINTEND(bugprone-reserved-identifier)

hipError_t hipConfigureCall(dim3 grid, dim3 block, size_t shared_bytes, hipStream_t stream) {
  return __hipPushCallConfiguration(grid, block, shared_bytes, stream);
}

hipError_t hipSetupArgument(const void* argument, size_t size, size_t offset) {
  if (t_configurations.empty()) return hipErrorMissingConfiguration;
  constexpr size_t kMost = 1 << 20;
  if (argument == nullptr || offset > kMost || size > kMost) return CUDA_ERROR_INVALID_VALUE;
  std::vector<char>& all = t_configurations.back().arguments;
  if (all.size() < offset + size) all.resize(offset + size);
  memcpy(all.data() + offset, argument, size);
  return CUDA_SUCCESS;
}

hipError_t hipLaunchByPtr(const void* function) {
  if (t_configurations.empty()) return hipErrorMissingConfiguration;
  Configuration call = std::move(t_configurations.back());
  t_configurations.pop_back();
  size_t bytes = call.arguments.size();
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, call.arguments.data(),
                   CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
  return WithFunction(function, [&](hipFunction_t f) {
    return softgpu::api::cuLaunchKernel(f, call.grid.x, call.grid.y, call.grid.z, call.block.x,
                                        call.block.y, call.block.z, unsigned(call.shared_bytes),
                                        call.stream, nullptr, bytes != 0 ? extra : nullptr);
  });
}

hipError_t hipLaunchKernel(const void* function, dim3 grid, dim3 block, void** params,
                           size_t shared_bytes, hipStream_t stream) {
  return Launch(function, grid, block, params, shared_bytes, stream);
}

hipError_t hipLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block, void** params,
                                      unsigned int shared_bytes, hipStream_t stream) {
  return Launch(function, grid, block, params, shared_bytes, stream);
}

hipError_t hipExtLaunchKernel(const void* function, dim3 grid, dim3 block, void** params,
                              size_t shared_bytes, hipStream_t stream, hipEvent_t start,
                              hipEvent_t stop, int) {
  return Between(start, stop, stream,
                 [&] { return Launch(function, grid, block, params, shared_bytes, stream); });
}

// The grid is given in threads.
hipError_t hipExtModuleLaunchKernel(hipFunction_t f, uint32_t global_x, uint32_t global_y,
                                    uint32_t global_z, uint32_t local_x, uint32_t local_y,
                                    uint32_t local_z, size_t shared_bytes, hipStream_t stream,
                                    void** params, void** extra, hipEvent_t start, hipEvent_t stop,
                                    uint32_t) {
  if (local_x == 0 || local_y == 0 || local_z == 0) return hipErrorInvalidConfiguration;
  if (global_x % local_x != 0 || global_y % local_y != 0 || global_z % local_z != 0) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  return Between(start, stop, stream, [&] {
    return api::cuLaunchKernel(f, global_x / local_x, global_y / local_y, global_z / local_z,
                               local_x, local_y, local_z, unsigned(shared_bytes), stream, params,
                               extra);
  });
}

hipError_t hipHccModuleLaunchKernel(hipFunction_t f, uint32_t global_x, uint32_t global_y,
                                    uint32_t global_z, uint32_t local_x, uint32_t local_y,
                                    uint32_t local_z, size_t shared_bytes, hipStream_t stream,
                                    void** params, void** extra, hipEvent_t start,
                                    hipEvent_t stop) {
  return hipExtModuleLaunchKernel(f, global_x, global_y, global_z, local_x, local_y, local_z,
                                  shared_bytes, stream, params, extra, start, stop, 0);
}

hipError_t hipGetFuncBySymbol(hipFunction_t* function, const void* symbol) {
  return function == nullptr ? CUDA_ERROR_INVALID_VALUE : FindFunction(symbol, function);
}

hipError_t hipFuncGetAttributes(hipFuncAttributes* attributes, const void* function) {
  if (attributes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return WithFunction(function, [&](hipFunction_t f) {
    *attributes = {};
    softgpu::api::cuFuncGetAttribute(&attributes->maxThreadsPerBlock,
                                     CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, f);
    softgpu::api::cuFuncGetAttribute(&attributes->maxDynamicSharedSizeBytes,
                                     CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, f);
    return softgpu::api::cuFuncGetAttribute(&attributes->numRegs, CU_FUNC_ATTRIBUTE_NUM_REGS, f);
  });
}

hipError_t hipFuncSetAttribute(const void* function, CUfunction_attribute attribute, int value) {
  return WithFunction(function, [&](hipFunction_t f) {
    return softgpu::api::cuFuncSetAttribute(f, attribute, value);
  });
}

hipError_t hipFuncSetCacheConfig(const void* function, CUfunc_cache config) {
  return WithFunction(
      function, [&](hipFunction_t f) { return softgpu::api::cuFuncSetCacheConfig(f, config); });
}

hipError_t hipFuncSetSharedMemConfig(const void* function, CUsharedconfig config) {
  return WithFunction(
      function, [&](hipFunction_t f) { return softgpu::api::cuFuncSetSharedMemConfig(f, config); });
}

hipError_t hipModuleOccupancyMaxPotentialBlockSize(int* grid, int* block, hipFunction_t f,
                                                   size_t shared_bytes, int limit) {
  return softgpu::api::cuOccupancyMaxPotentialBlockSize(grid, block, f, nullptr, shared_bytes,
                                                        limit);
}

hipError_t hipModuleOccupancyMaxPotentialBlockSizeWithFlags(int* grid, int* block, hipFunction_t f,
                                                            size_t shared_bytes, int limit,
                                                            unsigned int) {
  return hipModuleOccupancyMaxPotentialBlockSize(grid, block, f, shared_bytes, limit);
}

hipError_t hipOccupancyMaxPotentialBlockSize(int* grid, int* block, const void* function,
                                             size_t shared_bytes, int limit) {
  return WithFunction(function, [&](hipFunction_t f) {
    return hipModuleOccupancyMaxPotentialBlockSize(grid, block, f, shared_bytes, limit);
  });
}

hipError_t hipOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function,
                                                        int block_size, size_t shared_bytes) {
  return WithFunction(function, [&](hipFunction_t f) {
    return softgpu::api::cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, f, block_size,
                                                                     shared_bytes);
  });
}

hipError_t hipOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* function,
                                                                 int block_size,
                                                                 size_t shared_bytes,
                                                                 unsigned int) {
  return hipOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, block_size, shared_bytes);
}

hipError_t hipGetSymbolAddress(void** ptr, const void* symbol) {
  if (ptr == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return FindVariable(symbol, reinterpret_cast<CUdeviceptr*>(ptr), nullptr);
}

hipError_t hipGetSymbolSize(size_t* size, const void* symbol) {
  return size == nullptr ? CUDA_ERROR_INVALID_VALUE : FindVariable(symbol, nullptr, size);
}

hipError_t hipMemcpyToSymbol(const void* symbol, const void* src, size_t bytes, size_t offset,
                             hipMemcpyKind kind) {
  return WithVariable(symbol, bytes, offset,
                      [&](void* ptr) { return hipMemcpy(ptr, src, bytes, kind); });
}

hipError_t hipMemcpyToSymbolAsync(const void* symbol, const void* src, size_t bytes, size_t offset,
                                  hipMemcpyKind kind, hipStream_t stream) {
  return WithVariable(symbol, bytes, offset,
                      [&](void* ptr) { return hipMemcpyAsync(ptr, src, bytes, kind, stream); });
}

hipError_t hipMemcpyFromSymbol(void* dst, const void* symbol, size_t bytes, size_t offset,
                               hipMemcpyKind kind) {
  return WithVariable(symbol, bytes, offset,
                      [&](void* ptr) { return hipMemcpy(dst, ptr, bytes, kind); });
}

hipError_t hipMemcpyFromSymbolAsync(void* dst, const void* symbol, size_t bytes, size_t offset,
                                    hipMemcpyKind kind, hipStream_t stream) {
  return WithVariable(symbol, bytes, offset,
                      [&](void* ptr) { return hipMemcpyAsync(dst, ptr, bytes, kind, stream); });
}

}  // namespace own

namespace api {

// HIP ends `extra` with a different value than the driver.
CUresult cuLaunchKernel(CUfunction f, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                        unsigned int block_x, unsigned int block_y, unsigned int block_z,
                        unsigned int shared_bytes, CUstream stream, void** params, void** extra) {
  std::vector<void*> copy;
  if (extra != nullptr) {
    constexpr size_t kMost = 4;  // a pointer and a size, each with its name
    for (void** at = extra; *at != kLaunchParamEnd; at += 2) {
      if (copy.size() == kMost) return CUDA_ERROR_INVALID_VALUE;
      copy.insert(copy.end(), {at[0], at[1]});
    }
    copy.push_back(CU_LAUNCH_PARAM_END);
  }
  return softgpu::api::cuLaunchKernel(f, grid_x, grid_y, grid_z, block_x, block_y, block_z,
                                      shared_bytes, stream, params,
                                      extra != nullptr ? copy.data() : nullptr);
}

}  // namespace api
}  // namespace softgpu::hip
