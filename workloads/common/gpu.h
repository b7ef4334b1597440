// Short names for what every GPU workload does: a context, a module, arrays, launches. Every error
// ends the program with FAILED.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/driver.h"
#include "common/protocol.h"

// CU(cuSomething(…)): fails with the call, the error's name and the place.
#define CU(call) ::workloads::CheckDriver((call), #call, __FILE_NAME__, __LINE__)

namespace workloads {

void CheckDriver(CUresult result, const char* call, const char* file, int line);

bool OnSoftgpu();

// cuInit, the device of `options`, its primary context made current, and the ballast.
void OpenGpu(const Options& options);
// Compares the ballast with what it was filled with; returns its checksum, or fails.
uint64_t VerifyBallast();
bool BallastIsIntact(uint64_t* checksum);
// Frees the ballast and releases the primary context.
void CloseGpu();

CUdevice Device();
CUcontext PrimaryContext();

// The image of this program's kernels (or of `name`'s), beside the executable.
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

// Enough threads for `count` elements without one thread each: kernels stride over the grid.
Grid GridFor(uint64_t count);

// The arguments' types must be exactly those of the kernel's parameters.
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
    // From pageable memory it returns when the data is staged, not when it is there: a stream that
    // does not wait for the default stream would read what was there before.
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

// What the kernels `step` and `step_in_place` make of an array, computed here.
std::vector<uint32_t> StepWith(const std::vector<uint32_t>& own, const std::vector<uint32_t>& other,
                               uint32_t round);
void StepInPlace(std::vector<uint32_t>& words, uint32_t round);

// The checksum of `words`, as arithmetic.h defines it.
uint64_t Checksum(const uint32_t* words, size_t count);
uint64_t Checksum(const std::vector<uint32_t>& words);

// Fails, naming the first difference, unless both are equal.
void Compare(const char* what, const uint32_t* found, const uint32_t* expected, size_t count);
void Compare(const char* what, const std::vector<uint32_t>& found,
             const std::vector<uint32_t>& expected);

}  // namespace workloads
