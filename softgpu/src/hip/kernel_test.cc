// Streams, modules and kernels of HIP programs. The driver's own tests cover what HIP has in common
// with it.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "hip.h"

namespace softgpu::test {
namespace {

using namespace stasis::hip;

TEST(HipKernelTest, EventsAcceptHipsFlags) {
  hipEvent_t event = nullptr;
  ASSERT_OK(hipEventCreateWithFlags(&event, CU_EVENT_DISABLE_TIMING | hipEventReleaseToSystem));
  EXPECT_OK(hipEventRecord(event, nullptr));
  EXPECT_OK(hipEventSynchronize(event));
  EXPECT_OK(hipEventQuery(event));
  EXPECT_OK(hipEventDestroy(event));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, hipEventCreateWithFlags(&event, 0x100));
}

TEST(HipKernelTest, StreamsWaitForWholeWords) {
  hipStream_t stream = nullptr, blocking = nullptr;
  ASSERT_OK(hipStreamCreate(&blocking));
  EXPECT_OK(hipStreamDestroy(blocking));
  // The null stream, which writes the word, does not wait for this one.
  ASSERT_OK(hipStreamCreateWithFlags(&stream, CU_STREAM_NON_BLOCKING));
  const CUdeviceptr word = Allocate(8);
  EXPECT_OK(hipMemset(Pointer(word), 0, 8));
  EXPECT_OK(hipStreamWaitValue32(stream, Pointer(word), 5, CU_STREAM_WAIT_VALUE_GEQ, UINT32_MAX));
  EXPECT_CU(CUDA_ERROR_NOT_READY, hipStreamQuery(stream));
  EXPECT_OK(hipStreamWriteValue32(nullptr, word, 5, 0));
  EXPECT_OK(hipStreamSynchronize(stream));
  EXPECT_CU(CUDA_ERROR_NOT_SUPPORTED,
            hipStreamWaitValue64(stream, Pointer(word), 5, CU_STREAM_WAIT_VALUE_GEQ, 0xff));
  EXPECT_OK(hipStreamDestroy(stream));
  EXPECT_OK(hipFree(word));
}

TEST(HipKernelTest, ModulesLaunchWithAnArgumentBuffer) {
  hipModule_t module = nullptr;
  hipFunction_t function = nullptr;
  ASSERT_OK(hipModuleLoad(&module, ExampleImage().c_str()));
  ASSERT_OK(hipModuleGetFunction(&function, module, "add_one"));
  const CUdeviceptr data = Allocate(100 * sizeof(int));
  EXPECT_OK(hipMemsetD32(data, 5, 100));
  struct {
    CUdeviceptr data;
    int n;
  } arguments{data, 100};
  size_t bytes = sizeof(arguments);
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &arguments, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   kLaunchParamEnd};
  EXPECT_OK(hipModuleLaunchKernel(function, 4, 1, 1, 32, 1, 1, 0, nullptr, nullptr, extra));
  EXPECT_EQ(Ints(data, 100), std::vector<int>(100, 6));
  // HIP's own launch, whose grid is given in threads.
  EXPECT_OK(hipExtModuleLaunchKernel(function, 128, 1, 1, 32, 1, 1, 0, nullptr, nullptr, extra,
                                     nullptr, nullptr, 0));
  EXPECT_EQ(Ints(data, 100), std::vector<int>(100, 7));
  EXPECT_OK(hipModuleUnload(module));
  EXPECT_OK(hipFree(data));
}

// Registers an image as compiler-generated code does before main.
class Registered {
 public:
  explicit Registered(const std::string& path) : image_(Contents(path)) {
    wrapper_.binary = image_.data();
    modules_ = __hipRegisterFatBinary(&wrapper_);
  }
  ~Registered() { __hipUnregisterFatBinary(modules_); }
  void AddFunction(const void* address, const char* name) {
    __hipRegisterFunction(modules_, address, nullptr, name, 0, nullptr, nullptr, nullptr, nullptr,
                          nullptr);
  }
  void AddVariable(void* address, char* name, size_t size) {
    __hipRegisterVar(modules_, address, nullptr, name, 0, size, 0, 0);
  }

 private:
  std::string image_;
  struct {
    uint32_t magic = 0x48495046;
    uint32_t version = 1;
    const void* binary = nullptr;
    void* unused = nullptr;
  } wrapper_;
  void** modules_ = nullptr;
};

TEST(HipKernelTest, KernelsAndVariablesAreFoundByTheirAddressInTheProgram) {
  static char kernel, variable, other;
  char name[] = "counter";
  {
    Registered registered(ExampleImage());
    registered.AddFunction(&kernel, "add_one");
    registered.AddVariable(&variable, name, sizeof(int));
    CUdeviceptr data = Allocate(10 * sizeof(int));
    EXPECT_OK(hipMemsetD32(data, 5, 10));
    int n = 10;
    void* params[] = {&data, &n};
    EXPECT_OK(hipLaunchKernel(&kernel, {1, 1, 1}, {32, 1, 1}, params, 0, nullptr));
    EXPECT_EQ(Ints(data, 10), std::vector<int>(10, 6));
    // The same launch by the old calls, which set the arguments one by one.
    EXPECT_OK(hipConfigureCall({1, 1, 1}, {32, 1, 1}, 0, nullptr));
    EXPECT_OK(hipSetupArgument(&data, sizeof(data), 0));
    EXPECT_OK(hipSetupArgument(&n, sizeof(n), sizeof(data)));
    EXPECT_OK(hipLaunchByPtr(&kernel));
    EXPECT_EQ(Ints(data, 10), std::vector<int>(10, 7));
    int value = 41, read = 0;
    EXPECT_OK(hipMemcpyToSymbol(&variable, &value, sizeof(value), 0, hipMemcpyHostToDevice));
    EXPECT_OK(hipMemcpyFromSymbol(&read, &variable, sizeof(read), 0, hipMemcpyDeviceToHost));
    EXPECT_EQ(read, 41);
    EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
              hipMemcpyToSymbol(&variable, &value, sizeof(value), 1, hipMemcpyHostToDevice));
    EXPECT_CU(hipErrorInvalidSymbol,
              hipMemcpyToSymbol(&other, &value, sizeof(value), 0, hipMemcpyHostToDevice));
    EXPECT_CU(hipErrorInvalidDeviceFunction,
              hipLaunchKernel(&other, {1, 1, 1}, {1, 1, 1}, params, 0, nullptr));
    EXPECT_OK(hipFree(data));
  }
  EXPECT_CU(hipErrorInvalidDeviceFunction,
            hipLaunchKernel(&kernel, {1, 1, 1}, {1, 1, 1}, nullptr, 0, nullptr));
}

TEST(HipKernelTest, CallConfigurationsNest) {
  dim3 grid, block;
  size_t shared = 0;
  hipStream_t stream = nullptr;
  EXPECT_OK(__hipPushCallConfiguration({1, 2, 3}, {4, 5, 6}, 7, nullptr));
  EXPECT_OK(__hipPushCallConfiguration({8, 1, 1}, {9, 1, 1}, 0, nullptr));
  EXPECT_OK(__hipPopCallConfiguration(&grid, &block, &shared, &stream));
  EXPECT_EQ(grid.x, 8u);
  EXPECT_OK(__hipPopCallConfiguration(&grid, &block, &shared, &stream));
  EXPECT_EQ(grid.z, 3u);
  EXPECT_EQ(block.y, 5u);
  EXPECT_EQ(shared, 7u);
  EXPECT_CU(hipErrorMissingConfiguration,
            __hipPopCallConfiguration(&grid, &block, &shared, &stream));
}

}  // namespace
}  // namespace softgpu::test
