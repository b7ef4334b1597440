// Helpers of tests that link libamdhip64.
#pragma once

#include <string>
#include <vector>

#include "abi/hip/functions.h"
#include "testing.h"

namespace softgpu::test {

inline void* Pointer(uint64_t address) { return reinterpret_cast<void*>(address); }

// Allocates device memory, which the caller frees with hipFree. A failure fails the test.
CUdeviceptr Allocate(size_t bytes);

// Copies device memory to the host. A failure fails the test.
std::vector<char> Read(CUdeviceptr ptr, size_t bytes);
std::vector<int> Ints(CUdeviceptr ptr, size_t count);

// Returns the content of a file, or an empty string if it cannot be read.
std::string Contents(const std::string& path);

}  // namespace softgpu::test
