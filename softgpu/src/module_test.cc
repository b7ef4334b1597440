#include <fstream>
#include <numeric>

#include "testing.h"

namespace softgpu::test {
namespace {

class ModuleTest : public WithContext {
 protected:
  void SetUp() override {
    WithContext::SetUp();
    ASSERT_OK(cuModuleLoad(&module_, ExampleImage().c_str()));
  }
  void TearDown() override {
    EXPECT_OK(cuModuleUnload(module_));
    WithContext::TearDown();
  }
  CUfunction Function(const char* name) {
    CUfunction function = nullptr;
    EXPECT_OK(cuModuleGetFunction(&function, module_, name));
    return function;
  }
  int Bump() {
    CUdeviceptr out = 0;
    int value = 0;
    EXPECT_OK(cuMemAlloc_v2(&out, 4));
    void* params[] = {&out};
    EXPECT_OK(cuLaunchKernel(Function("bump"), 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr));
    EXPECT_OK(cuMemcpyDtoH_v2(&value, out, 4));
    EXPECT_OK(cuMemFree_v2(out));
    return value;
  }
  CUmodule module_ = nullptr;
};

TEST_F(ModuleTest, KernelsRunOverTheirGridAndWaitAtBarriers) {
  int n = 1000;
  std::vector<int> data(n);
  std::iota(data.begin(), data.end(), 0);
  CUdeviceptr ptr = 0;
  ASSERT_OK(cuMemAlloc_v2(&ptr, n * 4));
  ASSERT_OK(cuMemcpyHtoD_v2(ptr, data.data(), n * 4));
  void* params[] = {&ptr, &n};
  ASSERT_OK(cuLaunchKernel(Function("add_one"), 4, 1, 1, 256, 1, 1, 0, nullptr, params, nullptr));
  ASSERT_OK(cuLaunchKernel(Function("reverse"), 4, 1, 1, 256, 1, 1, 0, nullptr, params, nullptr));
  std::vector<int> back(n);
  ASSERT_OK(cuMemcpyDtoH_v2(back.data(), ptr, n * 4));
  for (int i = 0; i < n; ++i) {
    int base = i / 256 * 256, width = std::min(256, n - base);
    ASSERT_EQ(back[i], base + width - (i - base)) << i;
  }
  // Dynamic shared memory, and parameters as one buffer.
  CUdeviceptr total = 0;
  ASSERT_OK(cuMemAlloc_v2(&total, 8));
  ASSERT_OK(cuMemsetD32_v2(total, 0, 2));
  struct {
    CUdeviceptr data;
    int n;
    CUdeviceptr total;
  } packed{ptr, 256, total};
  size_t bytes = sizeof(packed);
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  ASSERT_OK(cuLaunchKernel(Function("sum"), 1, 1, 1, 256, 1, 1, 1024, nullptr, nullptr, extra));
  unsigned long long sum = 0;
  ASSERT_OK(cuMemcpyDtoH_v2(&sum, total, 8));
  EXPECT_EQ(sum, 256u * 257 / 2);
  ASSERT_OK(cuMemFree_v2(ptr));
  ASSERT_OK(cuMemFree_v2(total));
}

TEST_F(ModuleTest, GlobalsAreDeviceMemoryOfEachLoad) {
  CUdeviceptr address = 0, table = 0;
  size_t bytes = 0;
  ASSERT_OK(cuModuleGetGlobal_v2(&address, &bytes, module_, "counter"));
  EXPECT_EQ(bytes, 4u);
  ASSERT_OK(cuModuleGetGlobal_v2(&table, &bytes, module_, "table"));
  EXPECT_EQ(bytes, 4096u);
  EXPECT_CU(CUDA_ERROR_NOT_FOUND, cuModuleGetGlobal_v2(&table, &bytes, module_, "nothing"));
  EXPECT_EQ(Bump(), 101);
  int set = 500;
  ASSERT_OK(cuMemcpyHtoD_v2(address, &set, 4));
  EXPECT_EQ(Bump(), 501);

  size_t before = FreeBytes();
  CUmodule second = nullptr;
  ASSERT_OK(cuModuleLoad(&second, ExampleImage().c_str()));
  EXPECT_LT(FreeBytes(), before);
  CUdeviceptr other = 0;
  ASSERT_OK(cuModuleGetGlobal_v2(&other, nullptr, second, "counter"));
  EXPECT_NE(other, address);
  int value = 0;
  ASSERT_OK(cuMemcpyDtoH_v2(&value, other, 4));
  EXPECT_EQ(value, 100);
  ASSERT_OK(cuModuleUnload(second));
  EXPECT_EQ(FreeBytes(), before);
  EXPECT_EQ(Bump(), 502);
}

TEST_F(ModuleTest, InvalidLaunchesAreRejected) {
  CUdeviceptr out = 0;
  void* params[] = {&out};
  CUfunction bump = Function("bump");
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuLaunchKernel(bump, 1, 1, 1, 1025, 1, 1, 0, nullptr, params, nullptr));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuLaunchKernel(bump, 0, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuLaunchKernel(bump, 1, 1, 1, 1, 1, 1, 1 << 20, nullptr, params, nullptr));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuLaunchKernel(bump, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE,
            cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr));
  CUlaunchAttribute cluster{};
  cluster.id = CUlaunchAttributeID(4);
  CUlaunchConfig config{1, 1, 1, 1, 1, 1, 0, nullptr, &cluster, 1};
  EXPECT_CU(CUDA_ERROR_NOT_SUPPORTED, cuLaunchKernelEx(&config, bump, params, nullptr));
}

TEST_F(ModuleTest, FunctionsHaveAttributes) {
  CUfunction sum = Function("sum");
  const char* name = nullptr;
  size_t offset = 0, size = 0;
  int value = 0;
  CUmodule owner = nullptr;
  ASSERT_OK(cuFuncGetName(&name, sum));
  EXPECT_STREQ(name, "sum");
  ASSERT_OK(cuFuncGetParamInfo(sum, 2, &offset, &size));
  EXPECT_EQ(offset, 16u);
  EXPECT_EQ(size, 8u);
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuFuncGetParamInfo(sum, 3, &offset, &size));
  ASSERT_OK(cuFuncGetModule(&owner, sum));
  EXPECT_EQ(owner, module_);
  ASSERT_OK(cuFuncSetAttribute(sum, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100 * 1024));
  ASSERT_OK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, sum));
  EXPECT_EQ(value, 100 * 1024);
  unsigned count = 0;
  ASSERT_OK(cuModuleGetFunctionCount(&count, module_));
  EXPECT_EQ(count, 4u);
}

TEST_F(ModuleTest, ForeignImagesAreRejected) {
  CUmodule other = nullptr;
  EXPECT_CU(CUDA_ERROR_NO_BINARY_FOR_GPU,
            cuModuleLoadData(&other, ".version 8.0\n.target sm_90\n.address_size 64\n"));
  EXPECT_CU(CUDA_ERROR_FILE_NOT_FOUND, cuModuleLoad(&other, "/nowhere.so"));
  std::string self = "/proc/self/exe";
  CUresult of_program = cuModuleLoad(&other, self.c_str());
  EXPECT_TRUE(of_program == CUDA_ERROR_INVALID_IMAGE || of_program == CUDA_ERROR_NO_BINARY_FOR_GPU);
}

TEST_F(ModuleTest, KernelsOfALibraryRunInAnyContext) {
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  ASSERT_OK(cuLibraryLoadFromFile(&library, ExampleImage().c_str(), nullptr, nullptr, 0, nullptr,
                                  nullptr, 0));
  ASSERT_OK(cuLibraryGetKernel(&kernel, library, "bump"));
  EXPECT_CU(CUDA_ERROR_NOT_FOUND, cuLibraryGetKernel(&kernel, library, "nothing"));
  for (int round = 0; round < 2; ++round) {
    CUcontext context = nullptr;
    CUdeviceptr out = 0;
    int value = 0;
    ASSERT_OK(cuCtxCreate_v2(&context, 0, 0));
    ASSERT_OK(cuMemAlloc_v2(&out, 4));
    void* params[] = {&out};
    ASSERT_OK(cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 1, 1, 1, 0, nullptr,
                             params, nullptr));
    ASSERT_OK(cuMemcpyDtoH_v2(&value, out, 4));
    EXPECT_EQ(value, 101) << "each context has globals of its own";
    ASSERT_OK(cuCtxDestroy_v2(context));
  }
  ASSERT_OK(cuLibraryUnload(library));
}

}  // namespace
}  // namespace softgpu::test
