// The second face as a HIP program sees it. Tests what differs from the driver, and that calls
// reach the common parts, which the driver's own tests cover.

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <string.h>
#include <unistd.h>

#include <fstream>
#include <vector>

#include "abi/hip/functions.h"
#include "testing.h"

namespace softgpu::test {
namespace {

using namespace stasis::hip;

void* Pointer(uint64_t address) { return reinterpret_cast<void*>(address); }

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

// Starts without a call of hipInit and without a context.
SOFTGPU_ROLE(hip_first_call_allocates) {
  CUdeviceptr ptr = 0;
  int count = 0;
  MUST(hipMalloc(&ptr, 4096));
  MUST(hipGetDeviceCount(&count));
  return ptr != 0 && count == 2 ? 0 : 1;
}

TEST(HipTest, TheFirstCallInitialisesTheRuntime) {
  EXPECT_EQ(RunRole("hip_first_call_allocates"), 0);
}

TEST(HipTest, AnAllocationOfNothingIsANullPointer) {
  CUdeviceptr ptr = 1;
  EXPECT_OK(hipMalloc(&ptr, 0));
  EXPECT_EQ(ptr, 0u);
  EXPECT_OK(hipFree(ptr));
  EXPECT_OK(hipHostFree(nullptr));
  EXPECT_OK(hipFreeAsync(0, nullptr));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, hipMalloc(nullptr, 0));
}

TEST(HipTest, CopiesInEveryDirection) {
  const std::vector<char> data{'s', 't', 'a', 's', 'i', 's'};
  const CUdeviceptr a = Allocate(data.size()), b = Allocate(data.size());
  EXPECT_OK(hipMemcpy(Pointer(a), data.data(), data.size(), hipMemcpyHostToDevice));
  EXPECT_OK(hipMemcpy(Pointer(b), Pointer(a), data.size(), hipMemcpyDeviceToDevice));
  EXPECT_EQ(Read(b, data.size()), data);
  std::vector<char> back(data.size());
  EXPECT_OK(hipMemcpy(back.data(), Pointer(b), back.size(), hipMemcpyDefault));
  EXPECT_EQ(back, data);
  std::vector<char> again(data.size());
  EXPECT_OK(hipMemcpy(again.data(), back.data(), again.size(), hipMemcpyHostToHost));
  EXPECT_EQ(again, data);
  EXPECT_OK(hipMemcpyPeer(Pointer(a), 0, Pointer(b), 0, data.size()));
  EXPECT_CU(hipErrorInvalidMemcpyDirection,
            hipMemcpy(back.data(), Pointer(a), 1, hipMemcpyKind(5)));
  EXPECT_CU(hipErrorInvalidMemcpyDirection,
            hipMemcpyAsync(back.data(), Pointer(a), 1, hipMemcpyKind(-1), nullptr));
  EXPECT_OK(hipFree(a));
  EXPECT_OK(hipFree(b));
}

TEST(HipTest, CopiesAndFillsRectanglesAndBoxes) {
  void* ptr = nullptr;
  size_t pitch = 0;
  ASSERT_OK(hipMallocPitch(&ptr, &pitch, 3, 2));
  const char rows[] = {'a', 'b', 'c', 'd', 'e', 'f'};
  EXPECT_OK(hipMemset2D(ptr, pitch, 'x', 3, 2));
  EXPECT_OK(hipMemcpy2D(ptr, pitch, rows, 3, 2, 2, hipMemcpyHostToDevice));
  char back[6];
  EXPECT_OK(hipMemcpy2D(back, 3, ptr, pitch, 3, 2, hipMemcpyDeviceToHost));
  EXPECT_EQ(std::string(back, 6), "abxdex");
  hip_Memcpy2D copy{};
  copy.srcMemoryType = hipMemoryTypeDevice;
  copy.srcDevice = ptr;
  copy.srcPitch = pitch;
  copy.dstMemoryType = hipMemoryTypeHost;
  copy.dstHost = back;
  copy.dstPitch = 2;
  copy.WidthInBytes = 2;
  copy.Height = 2;
  EXPECT_OK(hipMemcpyParam2D(&copy));
  EXPECT_EQ(std::string(back, 4), "abde");
  EXPECT_OK(hipFree(CUdeviceptr(ptr)));

  hipPitchedPtr box{};
  ASSERT_OK(hipMalloc3D(&box, {4, 2, 2}));
  EXPECT_OK(hipMemset3D(box, 'y', {4, 2, 2}));
  char all[16];
  hipMemcpy3DParms out{};
  out.srcPtr = box;
  out.dstPtr = {all, 4, 4, 2};
  out.extent = {4, 2, 2};
  out.kind = hipMemcpyDeviceToHost;
  EXPECT_OK(hipMemcpy3D(&out));
  EXPECT_EQ(std::string(all, 16), std::string(16, 'y'));
  out.kind = hipMemcpyKind(9);
  EXPECT_CU(hipErrorInvalidMemcpyDirection, hipMemcpy3D(&out));
  HIP_MEMCPY3D same{};
  same.srcMemoryType = hipMemoryTypeHost;
  same.srcHost = rows;
  same.srcPitch = 3;
  same.srcHeight = 2;
  same.dstMemoryType = hipMemoryTypeDevice;
  same.dstDevice = box.ptr;
  same.dstPitch = box.pitch;
  same.dstHeight = 2;
  same.WidthInBytes = 3;
  same.Height = 2;
  same.Depth = 1;
  EXPECT_OK(hipDrvMemcpy3D(&same));
  out.kind = hipMemcpyDeviceToHost;
  EXPECT_OK(hipMemcpy3D(&out));
  EXPECT_EQ(std::string(all, 8), "abcydefy");
  EXPECT_OK(hipFree(CUdeviceptr(box.ptr)));
}

TEST(HipTest, PointersHaveHipsMemoryTypes) {
  const CUdeviceptr device = Allocate(64);
  CUdeviceptr managed = 0;
  void* host = nullptr;
  ASSERT_OK(hipMallocManaged(&managed, 64, CU_MEM_ATTACH_GLOBAL));
  ASSERT_OK(hipHostMalloc(&host, 64, hipHostMallocCoherent | CU_MEMHOSTALLOC_PORTABLE));
  int local = 0;
  auto type = [](const void* ptr) {
    hipPointerAttribute_t attributes{};
    EXPECT_OK(hipPointerGetAttributes(&attributes, ptr));
    return attributes.type;
  };
  EXPECT_EQ(type(Pointer(device)), hipMemoryTypeDevice);
  EXPECT_EQ(type(Pointer(managed)), hipMemoryTypeManaged);
  EXPECT_EQ(type(host), hipMemoryTypeHost);
  EXPECT_EQ(type(&local), hipMemoryTypeUnregistered);
  int one = 0;
  EXPECT_OK(hipPointerGetAttribute(&one, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, managed));
  EXPECT_EQ(one, hipMemoryTypeManaged);
  CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                 CU_POINTER_ATTRIBUTE_MEMORY_TYPE};
  int ordinal = -1, many = -1;
  void* data[] = {&ordinal, &many};
  EXPECT_OK(hipDrvPointerGetAttributes(2, asked, data, managed));
  EXPECT_EQ(ordinal, 0);
  EXPECT_EQ(many, hipMemoryTypeManaged);
  EXPECT_OK(hipFree(device));
  EXPECT_OK(hipFree(managed));
  EXPECT_OK(hipFreeHost(host));
}

TEST(HipTest, TheLastErrorStaysUntilItIsRead) {
  (void)hipGetLastError();
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, hipMalloc(nullptr, 1));
  EXPECT_OK(hipDeviceSynchronize());
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, hipPeekAtLastError());
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, hipGetLastError());
  EXPECT_OK(hipGetLastError());
}

TEST(HipTest, ErrorsHaveHipsNames) {
  EXPECT_STREQ(hipGetErrorName(CUDA_ERROR_OUT_OF_MEMORY), "hipErrorOutOfMemory");
  EXPECT_STREQ(hipGetErrorString(CUDA_ERROR_OUT_OF_MEMORY), "out of memory");
  const char* name = nullptr;
  EXPECT_OK(hipDrvGetErrorName(hipErrorInvalidSymbol, &name));
  EXPECT_STREQ(name, "hipErrorInvalidSymbol");
  EXPECT_OK(hipDrvGetErrorString(hipErrorInvalidSymbol, &name));
  EXPECT_STREQ(name, "invalid device symbol");
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, hipDrvGetErrorName(hipError_t(12345), &name));
  EXPECT_STREQ(hipGetErrorName(hipError_t(12345)), "hipErrorUnknown");
}

TEST(HipTest, EveryFunctionOfTheTableIsFoundByItsName) {
  const std::vector<const char*> names = {
#define STASIS_HIP_SAME(symbol, driver) #symbol,
#define STASIS_HIP_OWN(symbol, kind, parameters, arguments) #symbol,
#define STASIS_HIP_OTHER(symbol, kind, count) #symbol,
#define STASIS_HIP_VALUE(result, symbol, parameters, arguments) #symbol,
#include "abi/hip/functions.def"
  };
  for (const char* name : names) {
    void* found = nullptr;
    CUdriverProcAddressQueryResult status{};
    EXPECT_OK(hipGetProcAddress(name, &found, 50700000, 0, &status)) << name;
    EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SUCCESS);
    // A sanitized test contains the driver and exports nothing.
    if (!SOFTGPU_SANITIZED) {
      EXPECT_EQ(found, dlsym(RTLD_DEFAULT, name)) << name;
    }
  }
}

TEST(HipTest, NamesAreFoundByVersionAndStream) {
  void* found = nullptr;
  CUdriverProcAddressQueryResult status{};
  EXPECT_OK(hipGetProcAddress("hipGetDeviceProperties", &found, 60400000, 0, &status));
  EXPECT_EQ(found, reinterpret_cast<void*>(&hipGetDevicePropertiesR0600));
  EXPECT_OK(hipGetProcAddress("hipMemcpy", &found, 60400000,
                              CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &status));
  EXPECT_EQ(found, reinterpret_cast<void*>(&hipMemcpy_spt));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            hipGetProcAddress("hipNothing", &found, 60400000, 0, &status));
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  EXPECT_EQ(found, nullptr);
}

TEST(HipTest, DevicesHavePropertiesAndAttributes) {
  hipDeviceProp_tR0600 now{};
  hipDeviceProp_tR0000 before{};
  ASSERT_OK(hipGetDevicePropertiesR0600(&now, 1));
  ASSERT_OK(hipGetDeviceProperties(&before, 1));
  EXPECT_EQ(now.totalGlobalMem, 256u << 20);
  EXPECT_EQ(before.totalGlobalMem, 256u << 20);
  EXPECT_STREQ(now.gcnArchName, "softgpu");
  EXPECT_STREQ(before.gcnArchName, "softgpu");
  CUuuid uuid;
  EXPECT_OK(hipDeviceGetUuid(&uuid, 1));
  EXPECT_EQ(memcmp(uuid.bytes, now.uuid.bytes, sizeof(uuid.bytes)), 0);
  int value = 0;
  EXPECT_OK(hipDeviceGetAttribute(&value, hipDeviceAttributeMaxThreadsPerBlock, 1));
  EXPECT_EQ(value, now.maxThreadsPerBlock);
  EXPECT_OK(hipDeviceGetP2PAttribute(&value, hipDevP2PAttrAccessSupported, 0, 1));
  EXPECT_EQ(value, 1);
  EXPECT_CU(CUDA_ERROR_INVALID_DEVICE, hipGetDevicePropertiesR0600(&now, 2));
  EXPECT_CU(CUDA_ERROR_INVALID_DEVICE,
            hipDeviceGetAttribute(&value, hipDeviceAttributeWarpSize, 2));
}

SOFTGPU_ROLE(hip_uses_the_second_device) {
  int device = -1;
  MUST(hipSetDevice(1));
  MUST(hipGetDevice(&device));
  CUdeviceptr ptr = 0;
  MUST(hipMalloc(&ptr, 4096));
  hipPointerAttribute_t attributes{};
  MUST(hipPointerGetAttributes(&attributes, Pointer(ptr)));
  if (device != 1 || attributes.device != 1) return 1;
  if (hipSetDevice(2) != CUDA_ERROR_INVALID_DEVICE) return 2;
  MUST(hipDeviceEnablePeerAccess(0, 0));
  if (hipDeviceEnablePeerAccess(0, 0) != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) return 3;
  MUST(hipDeviceDisablePeerAccess(0));
  MUST(hipDeviceReset());
  // The memory is gone, and the next call creates a new context.
  if (hipFree(ptr) != CUDA_ERROR_INVALID_VALUE) return 4;
  MUST(hipMalloc(&ptr, 4096));
  MUST(hipGetDevice(&device));
  return device == 1 ? 0 : 5;
}

TEST(HipTest, AThreadHasACurrentDevice) { EXPECT_EQ(RunRole("hip_uses_the_second_device"), 0); }

SOFTGPU_ROLE(hip_counts_devices) {
  int count = 0;
  MUST(hipGetDeviceCount(&count));
  return count;
}

TEST(HipTest, VisibleDevicesAreThoseOfHip) {
  EXPECT_EQ(RunRole("hip_counts_devices"), 2);
  EXPECT_EQ(RunRole("hip_counts_devices", {}, {.environment = {"HIP_VISIBLE_DEVICES=1"}}), 1);
  EXPECT_EQ(RunRole("hip_counts_devices", {}, {.environment = {"CUDA_VISIBLE_DEVICES=1"}}), 1);
  EXPECT_EQ(RunRole("hip_counts_devices", {},
                    {.environment = {"CUDA_VISIBLE_DEVICES=0", "HIP_VISIBLE_DEVICES=0,1"}}),
            2);
}

TEST(HipTest, MemoryIsMappedExportedAndImported) {
  CUmemAllocationProp properties;
  memset(&properties, 0xff, sizeof(properties));  // HIP leaves the last bytes undefined
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  properties.win32HandleMetaData = nullptr;
  properties.allocFlags.compressionType = 0;
  properties.allocFlags.gpuDirectRDMACapable = 0;
  properties.allocFlags.usage = 0;
  size_t bytes = 0;
  ASSERT_OK(hipMemGetAllocationGranularity(&bytes, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  CUmemGenericAllocationHandle handle = 0, imported = 0;
  ASSERT_OK(hipMemCreate(&handle, bytes, &properties, 0));
  CUmemAllocationProp kept{};
  EXPECT_OK(hipMemGetAllocationPropertiesFromHandle(&kept, handle));
  for (unsigned char byte : kept.allocFlags.reserved) EXPECT_EQ(byte, 0);
  int file = -1;
  ASSERT_OK(
      hipMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  ASSERT_OK(
      hipMemImportFromShareableHandle(&imported, &file, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  close(file);
  CUdeviceptr range = 0;
  ASSERT_OK(hipMemAddressReserve(&range, 2 * bytes, 0, 0, 0));
  ASSERT_OK(hipMemMap(range, bytes, 0, handle, 0));
  ASSERT_OK(hipMemMap(range + bytes, bytes, 0, imported, 0));
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                               CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  ASSERT_OK(hipMemSetAccess(range, 2 * bytes, &access, 1));
  EXPECT_OK(hipMemset(Pointer(range), 7, 16));
  EXPECT_EQ(Read(range + bytes, 16), std::vector<char>(16, 7));
  EXPECT_OK(hipMemUnmap(range, bytes));
  EXPECT_OK(hipMemUnmap(range + bytes, bytes));
  EXPECT_OK(hipMemRelease(handle));
  EXPECT_OK(hipMemRelease(imported));
  EXPECT_OK(hipMemAddressFree(range, 2 * bytes));
}

SOFTGPU_ROLE(hip_imports_by_value) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemGenericAllocationHandle handle = 0, imported = 0;
  int file = -1;
  MUST(hipMemCreate(&handle, 2 << 20, &properties, 0));
  MUST(hipMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  MUST(hipMemImportFromShareableHandle(&imported, Pointer(uint64_t(file)),
                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  return 0;
}

TEST(HipTest, SinceVersion71DescriptorsAreImportedByValue) {
  EXPECT_EQ(RunRole("hip_imports_by_value", {}, {.environment = {"SOFTGPU_HIP_VERSION=70100000"}}),
            0);
}

TEST(HipTest, PoolsServeMemoryInStreamOrder) {
  hipStream_t stream = nullptr;
  ASSERT_OK(hipStreamCreateWithFlags(&stream, CU_STREAM_NON_BLOCKING));
  CUdeviceptr ptr = 0;
  ASSERT_OK(hipMallocAsync(&ptr, 1 << 20, stream));
  ASSERT_OK(hipMemsetAsync(Pointer(ptr), 3, 8, stream));
  ASSERT_OK(hipStreamSynchronize(stream));
  EXPECT_EQ(Read(ptr, 8), std::vector<char>(8, 3));
  EXPECT_OK(hipFreeAsync(ptr, stream));
  hipMemPool_t pool = nullptr;
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  ASSERT_OK(hipMemPoolCreate(&pool, &properties));
  ASSERT_OK(hipMallocFromPoolAsync(&ptr, 4096, pool, stream));
  EXPECT_OK(hipFreeAsync(ptr, stream));
  EXPECT_OK(hipStreamSynchronize(stream));
  EXPECT_OK(hipMemPoolDestroy(pool));
  EXPECT_OK(hipStreamDestroy(stream));
}

TEST(HipTest, EventsAcceptHipsFlags) {
  hipEvent_t event = nullptr;
  ASSERT_OK(hipEventCreateWithFlags(&event, CU_EVENT_DISABLE_TIMING | hipEventReleaseToSystem));
  EXPECT_OK(hipEventRecord(event, nullptr));
  EXPECT_OK(hipEventSynchronize(event));
  EXPECT_OK(hipEventQuery(event));
  EXPECT_OK(hipEventDestroy(event));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, hipEventCreateWithFlags(&event, 0x100));
}

TEST(HipTest, StreamsWaitForWholeWords) {
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

TEST(HipTest, ModulesLaunchWithAnArgumentBuffer) {
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

TEST(HipTest, KernelsAndVariablesAreFoundByTheirAddressInTheProgram) {
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

TEST(HipTest, CallConfigurationsNest) {
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

SOFTGPU_ROLE(hip_opens_a_handle) {
  CUipcMemHandle handle;
  const std::string& hex = arguments.at(0);
  for (size_t i = 0; i < sizeof(handle); ++i) {
    handle.reserved[i] = char(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  }
  CUdeviceptr ptr = 0;
  MUST(hipIpcOpenMemHandle(&ptr, handle, 0));
  MUST(hipMemset(Pointer(ptr), 9, 8));
  MUST(hipDeviceSynchronize());
  MUST(hipIpcCloseMemHandle(ptr));
  return 0;
}

TEST(HipTest, ProcessesShareMemoryByHandles) {
  const CUdeviceptr ptr = Allocate(4096);
  CUipcMemHandle handle;
  ASSERT_OK(hipIpcGetMemHandle(&handle, ptr));
  std::string hex;
  for (char c : handle.reserved) {
    char byte[3];
    snprintf(byte, sizeof(byte), "%02x", static_cast<unsigned char>(c));
    hex += byte;
  }
  EXPECT_EQ(RunRole("hip_opens_a_handle", {hex}), 0);
  EXPECT_EQ(Read(ptr, 8), std::vector<char>(8, 9));
  EXPECT_OK(hipFree(ptr));
}

TEST(HipTest, WhatIsMissingIsNotSupported) {
  void* found = nullptr;
  CUdriverProcAddressQueryResult status{};
  EXPECT_OK(hipGetProcAddress("hipMallocArray", &found, 50700000, 0, &status));
  ASSERT_NE(found, nullptr);
#if !SOFTGPU_SANITIZED  // the sanitizer rejects calls by a function type other than the
                        // definition's
  auto* array =
      reinterpret_cast<hipError_t (*)(void*, const void*, size_t, size_t, unsigned)>(found);
  EXPECT_CU(CUDA_ERROR_NOT_SUPPORTED, array(nullptr, nullptr, 0, 0, 0));
#endif
  hipArray_t other = nullptr;
  EXPECT_CU(CUDA_ERROR_NOT_SUPPORTED, hipMalloc3DArray(&other, nullptr, {1, 1, 1}, 0));
}

TEST(HipTest, DeviceFilesShowThatAProgramUsesHip) {
  const CUdeviceptr ptr = Allocate(4096);
  EXPECT_NE(Contents("/proc/self/maps").find(" /softgpu-hip/0/#"), std::string::npos);
  EXPECT_EQ(Contents("/proc/self/maps").find(" /softgpu/"), std::string::npos);
  EXPECT_OK(hipFree(ptr));
}

SOFTGPU_ROLE(hip_allocates) {
  CUdeviceptr ptr = 0;
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp properties{};
  Say(std::to_string(hipMalloc(&ptr, 4096)));
  Say(std::to_string(hipMemCreate(&handle, 0, &properties, 0)));
  return 0;
}

TEST(HipTest, FaultsAreGivenByHipsNames) {
  Child child("hip_allocates", {},
              {.environment = {"SOFTGPU_FAULT=hipMalloc=fail(2),hipMemCreate=fail(719)"}});
  EXPECT_EQ(child.Hear(), "2");
  EXPECT_EQ(child.Hear(), "719");
  EXPECT_EQ(child.Wait(), 0);
}

#if !SOFTGPU_SANITIZED
template <class F>
F CudaFunction(const char* name) {
  void* library = dlopen(SOFTGPU_CUDA, RTLD_NOW | RTLD_LOCAL);
  return library == nullptr ? nullptr : reinterpret_cast<F>(dlsym(library, name));
}

TEST(HipTest, TheLibraryExportsNothingOfCuda) {
  EXPECT_EQ(dlsym(RTLD_DEFAULT, "cuInit"), nullptr);
  EXPECT_NE(dlsym(RTLD_DEFAULT, "softgpuVersion"), nullptr);
}

SOFTGPU_ROLE(hip_then_cuda) {
  MUST(hipInit(0));
  auto init = CudaFunction<CUresult (*)(unsigned)>("cuInit");
  return init == nullptr ? 1 : int(init(0));
}

TEST(HipTest, AProcessUsesOnlyOneFace) {
  EXPECT_EQ(RunRole("hip_then_cuda") % 256, CUDA_ERROR_OPERATING_SYSTEM % 256);
}

SOFTGPU_ROLE(hip_waits) {
  MUST(hipInit(0));
  Say("ready");
  Hear();
  return 0;
}

SOFTGPU_ROLE(cuda_asks_for_the_state) {
  auto init = CudaFunction<CUresult (*)(unsigned)>("cuInit");
  auto state = CudaFunction<CUresult (*)(int, int*)>("cuCheckpointProcessGetState");
  if (init == nullptr || init(0) != CUDA_SUCCESS) return 1;
  int value = 0;
  return state(std::stoi(arguments.at(0)), &value) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 2;
}

TEST(HipTest, AHipProcessHasNoCheckpoint) {
  Child child("hip_waits");
  ASSERT_EQ(child.Hear(), "ready");
  EXPECT_EQ(RunRole("cuda_asks_for_the_state", {std::to_string(child.pid())}), 0);
  child.Say("go");
  EXPECT_EQ(child.Wait(), 0);
}
#endif

}  // namespace
}  // namespace softgpu::test
