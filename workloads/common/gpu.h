// Short functions for common steps of GPU workloads: context, module, arrays, launches. Every error
// ends the program with FAILED.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/driver.h"
#include "common/protocol.h"

// CU(cuSomething(…)) fails with the call, the error's name and the source location.
#define CU(call) ::workloads::CheckDriver((call), #call, __FILE_NAME__, __LINE__)

namespace workloads {

void CheckDriver(CUresult result, const char* call, const char* file, int line);

bool OnSoftgpu();

// Calls cuInit, makes the primary context of the device in `options` current, and fills
// `options.memory_bytes` of GPU memory with test data.
void OpenGpu(const Options& options);
// Compares the test data with its original content. Returns its checksum, or ends the program with
// FAILED.
uint64_t VerifyBallast();
bool BallastIsIntact(uint64_t* checksum);
// Frees the test data and releases the primary context.
void CloseGpu();

CUdevice Device();
CUcontext PrimaryContext();

// Returns the path of the image with this program's kernels (or `name`'s), beside the executable.
std::string ImagePath(const std::string& name = {});
std::string ReadFile(const std::string& path);
CUmodule LoadModule(const std::string& name = {});
CUfunction Function(CUmodule module, const char* name);

struct Global {
  CUdeviceptr address;
  size_t bytes;
};
Global FindGlobal(CUmodule module, const char* name);

void FlipByte(CUdeviceptr address);

struct Grid {
  uint32_t blocks;
  uint32_t threads;
  uint32_t shared_bytes = 0;
};

// Returns a grid for `count` elements. It may have fewer threads than elements, because kernels
// stride over the grid.
Grid GridFor(uint64_t count);

// The types of the arguments must exactly match the kernel's parameters.
template <typename... Arguments>
void Launch(CUfunction function, Grid grid, CUstream stream, Arguments... arguments) {
  void* parameters[] = {static_cast<void*>(&arguments)...};
  CU(cuLaunchKernel(function, grid.blocks, 1, 1, grid.threads, 1, 1, grid.shared_bytes, stream,
                    parameters, nullptr));
}

// Device memory from cuMemAlloc for `count` elements of T.
template <typename T>
class DeviceArray {
 public:
  DeviceArray() = default;
  explicit DeviceArray(size_t count) : count_(count) { CU(cuMemAlloc(&address_, bytes())); }
  explicit DeviceArray(const std::vector<T>& contents) : DeviceArray(contents.size()) {
    CU(cuMemcpyHtoD(address_, contents.data(), bytes()));
    // A copy from pageable memory returns when the data is staged, not when it has arrived. A
    // stream that does not wait for the default stream would read stale data.
    CU(cuStreamSynchronize(nullptr));
  }

  CUdeviceptr address() const { return address_; }
  size_t count() const { return count_; }
  size_t bytes() const { return count_ * sizeof(T); }

  std::vector<T> Read() const {
    std::vector<T> contents(count_);
    CU(cuMemcpyDtoH(contents.data(), address_, bytes()));
    return contents;
  }
  void Free() {
    CU(cuMemFree(address_));
    address_ = 0;
  }

 private:
  CUdeviceptr address_ = 0;
  size_t count_ = 0;
};

std::vector<uint32_t> RandomWords(uint64_t seed, size_t count);

// Compute the results of the kernels `step` and `step_in_place` on the host.
std::vector<uint32_t> StepWith(const std::vector<uint32_t>& own, const std::vector<uint32_t>& other,
                               uint32_t round);
void StepInPlace(std::vector<uint32_t>& words, uint32_t round);

// Returns the checksum of `words` as defined in arithmetic.h.
uint64_t Checksum(const uint32_t* words, size_t count);
uint64_t Checksum(const std::vector<uint32_t>& words);

// Fails with the first difference unless both are equal.
void Compare(const char* what, const uint32_t* found, const uint32_t* expected, size_t count);
void Compare(const char* what, const std::vector<uint32_t>& found,
             const std::vector<uint32_t>& expected);

}  // namespace workloads
