// Helpers of tests that link libcuda.

#include "testing.h"

namespace softgpu::test {
namespace {

constexpr size_t kContextBytes = 4 << 20;

}  // namespace

std::string Name(CUresult result) {
  const char* name = nullptr;
  cuGetErrorName(result, &name);
  return name != nullptr ? name : std::to_string(result);
}

size_t FreeBytes() {
  size_t free_bytes = 0;
  EXPECT_OK(cuMemGetInfo_v2(&free_bytes, nullptr));
  return free_bytes;
}

void WithContext::SetUp() {
  ASSERT_OK(cuInit(0));
  ASSERT_OK(cuCtxCreate_v2(&context_, 0, 0));
  // Wait until memory of processes of earlier tests is freed. This also detects leaks.
  size_t total = 0;
  ASSERT_OK(cuMemGetInfo_v2(nullptr, &total));
  ASSERT_TRUE(Eventually([&] { return FreeBytes() == total - kContextBytes; })) << FreeBytes();
}

void WithContext::TearDown() {
  if (context_ == nullptr) return;
  EXPECT_OK(cuCtxDestroy_v2(context_));
}

}  // namespace softgpu::test
