#include "hip.h"

#include <gtest/gtest.h>

#include <fstream>

namespace softgpu::test {

using namespace stasis::hip;

std::string Name(CUresult result) { return hipGetErrorName(result); }

CUdeviceptr Allocate(size_t bytes) {
  CUdeviceptr ptr = 0;
  EXPECT_OK(hipMalloc(&ptr, bytes));
  return ptr;
}

std::vector<char> Read(CUdeviceptr ptr, size_t bytes) {
  std::vector<char> contents(bytes);
  EXPECT_OK(hipMemcpy(contents.data(), Pointer(ptr), bytes, hipMemcpyDeviceToHost));
  return contents;
}

std::vector<int> Ints(CUdeviceptr ptr, size_t count) {
  std::vector<int> contents(count);
  EXPECT_OK(hipMemcpyDtoH(contents.data(), ptr, count * sizeof(int)));
  return contents;
}

std::string Contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace softgpu::test
