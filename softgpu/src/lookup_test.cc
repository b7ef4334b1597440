#include <dlfcn.h>

#include <set>

#include "testing.h"

namespace softgpu::test {
namespace {

template <class F>
void* Address(F* function) {
  return reinterpret_cast<void*>(function);
}

struct Found {
  CUresult result;
  void* address;
  CUdriverProcAddressQueryResult status;
};

Found Look(const char* name, int version, cuuint64_t flags = 0) {
  Found found{};
  found.result = cuGetProcAddress_v2(name, &found.address, version, flags, &found.status);
  return found;
}

TEST(LookupTest, AVersionSelectsItsFunction) {
  EXPECT_EQ(Look("cuMemAlloc", 13000).address, Address(&cuMemAlloc_v2));
  EXPECT_EQ(Look("cuCtxCreate", 3020).address, Address(&cuCtxCreate_v2));
  EXPECT_EQ(Look("cuCtxCreate", 11040).address, Address(&cuCtxCreate_v3));
  EXPECT_EQ(Look("cuCtxCreate", 13000).address, Address(&cuCtxCreate_v4));
  EXPECT_EQ(Look("cuGetProcAddress", 11030).address, Address(&cuGetProcAddress));
  EXPECT_EQ(Look("cuGetProcAddress", 12000).address, Address(&cuGetProcAddress_v2));
  EXPECT_EQ(Look("cuCtxGetDevice", 12080).address, Address(&cuCtxGetDevice));
  EXPECT_EQ(Look("cuCtxGetDevice", 13000).address, Address(&cuCtxGetDevice_v2));
}

TEST(LookupTest, AMissingFunctionHasAReason) {
  Found found = Look("cuNoSuchFunction", 13000);
  EXPECT_CU(CUDA_SUCCESS, found.result);
  EXPECT_EQ(found.address, nullptr);
  EXPECT_EQ(found.status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  found = Look("cuMemCreate", 10000);
  EXPECT_EQ(found.address, nullptr);
  EXPECT_EQ(found.status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, Look("cuMemCreate", 13010).result);
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, Look("cuMemCreate", 13000, 3).result);
  void* address = nullptr;
  EXPECT_CU(CUDA_ERROR_NOT_FOUND, cuGetProcAddress("cuNoSuchFunction", &address, 13000, 0));
}

TEST(LookupTest, FlagsSelectTheDefaultStream) {
  constexpr cuuint64_t kPerThread = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  EXPECT_EQ(Look("cuLaunchKernel", 13000).address, Address(&cuLaunchKernel));
  EXPECT_EQ(Look("cuLaunchKernel", 13000, kPerThread).address, Address(&cuLaunchKernel_ptsz));
  EXPECT_EQ(Look("cuMemcpyHtoD", 13000, kPerThread).address, Address(&cuMemcpyHtoD_v2_ptds));
  EXPECT_EQ(Look("cuMemAlloc", 13000, kPerThread).address, Address(&cuMemAlloc_v2));
  EXPECT_EQ(Look("cuLaunchKernel", 6050, kPerThread).address, nullptr);
}

#if !SOFTGPU_SANITIZED
TEST(LookupTest, DlsymFindsTheSame) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(library, nullptr);
  EXPECT_EQ(dlsym(library, "cuMemAlloc_v2"), Address(&cuMemAlloc_v2));
  EXPECT_EQ(dlsym(library, "cuLaunchKernel_ptsz"), Address(&cuLaunchKernel_ptsz));
  EXPECT_EQ(dlsym(library, "_ZN7softgpu6driverEv"), nullptr) << "only the API is exported";
  dlclose(library);
}
#endif

TEST(LookupTest, KnownUnimplementedFunctionsAreNotSupported) {
  for (const char* name : {"cuArrayCreate", "cuGraphInstantiate", "cuTexObjectCreate",
                           "cuMulticastCreate", "cuGreenCtxCreate"}) {
    Found found = Look(name, 13000);
    if (found.address == nullptr) found = Look((std::string(name) + "WithFlags").c_str(), 13000);
    ASSERT_NE(found.address, nullptr) << name;
    EXPECT_CU(CUDA_ERROR_NOT_SUPPORTED, reinterpret_cast<CUresult (*)()>(found.address)()) << name;
  }
  const void* table = nullptr;
  CUuuid id{};
  EXPECT_CU(CUDA_ERROR_NOT_SUPPORTED, cuGetExportTable(&table, &id));
}

TEST(LookupTest, ErrorsHaveNamesAndTexts) {
  const char* text = nullptr;
  EXPECT_OK(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text));
  EXPECT_STREQ(text, "CUDA_ERROR_OUT_OF_MEMORY");
  EXPECT_OK(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text));
  EXPECT_STREQ(text, "out of memory");
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuGetErrorName(CUresult(12345), &text));
}

}  // namespace
}  // namespace softgpu::test
