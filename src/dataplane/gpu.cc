#include "dataplane/gpu.h"

#include <unistd.h>

#include <cstring>

#include "device/cuda/gpu_uuid.h"
#include "device/cuda/nvml.h"

namespace stasis::dataplane {
namespace {

using namespace stasis::cuda;  // NOLINT: the driver's own names

struct CodeRow {
  CUresult result;
  Code code;
};
constexpr CodeRow kCodes[] = {
    {CUDA_ERROR_INVALID_VALUE, Code::kInvalidArgument},
    {CUDA_ERROR_OUT_OF_MEMORY, Code::kResourceExhausted},
    {CUDA_ERROR_INVALID_DEVICE, Code::kInvalidArgument},
    {CUDA_ERROR_NOT_SUPPORTED, Code::kUnimplemented},
    {CUDA_ERROR_NOT_PERMITTED, Code::kPermissionDenied},
};

template <class Uuid>
bool Same(const Uuid& a, const device::cuda::wire::Uuid& b) {
  return std::memcmp(a.bytes, b.bytes, sizeof b.bytes) == 0;
}

}  // namespace

bool IsHarmless(int cu_result) {
  for (const CodeRow& row : kCodes) {
    if (row.result == cu_result) return true;
  }
  return false;
}

Error Gpu::MakeError(CUresult result, const char* call) const {
  const char* name = nullptr;
  const char* text = nullptr;
  basic_.cuGetErrorName(result, &name);
  basic_.cuGetErrorString(result, &text);
  Error error;
  error.code = Code::kInternal;
  for (const CodeRow& row : kCodes) {
    if (row.result == result) error.code = row.code;
  }
  error.domain = Domain::kCuda;
  error.raw = result;
  error.message = std::string(call) + ": " +
                  (name != nullptr ? name : "CUresult " + std::to_string(result)) +
                  (text != nullptr ? std::string(" (") + text + ")" : "");
  return error;
}

Result<Gpu> Gpu::Open(const std::string& library, const device::GpuUuid& uuid) {
  STASIS_ASSIGN(device::cuda::wire::Uuid wanted, device::cuda::ToBytes(uuid));
  device::cuda::DriverLibrary driver = device::cuda::OpenDriver(library);
  if (!driver.initialised) return Fail(Code::kUnimplemented, driver.why_not);
  Gpu gpu;
  gpu.basic_ = driver.fn;
  gpu.kind_ = driver.kind;
  const auto& basic = gpu.basic_;
#define STASIS_MOVER_RESOLVE(symbol)                                                 \
  gpu.fn_.symbol = reinterpret_cast<decltype(gpu.fn_.symbol)>(driver.Find(#symbol)); \
  if (gpu.fn_.symbol == nullptr) {                                                   \
    return Fail(Code::kUnimplemented,                                                \
                "this driver is too old to share GPU memory: it lacks " #symbol);    \
  }
  STASIS_MOVER_FUNCTIONS(STASIS_MOVER_RESOLVE)
#undef STASIS_MOVER_RESOLVE

  auto check = [&](CUresult result, const char* call) -> Status {
    if (result != CUDA_SUCCESS) return Fail(gpu.MakeError(result, call));
    return {};
  };
  int count = 0;
  STASIS_TRY(check(basic.cuDeviceGetCount(&count), "cuDeviceGetCount"));
  auto get_uuid =
      basic.cuDeviceGetUuid_v2 != nullptr ? basic.cuDeviceGetUuid_v2 : basic.cuDeviceGetUuid;
  bool found = false;
  for (int i = 0; i < count && !found; ++i) {
    CUuuid bytes;
    STASIS_TRY(check(basic.cuDeviceGet(&gpu.device_, i), "cuDeviceGet"));
    STASIS_TRY(check(get_uuid(&bytes, gpu.device_), "cuDeviceGetUuid"));
    found = Same(bytes, wanted);
  }
  if (!found) {
    return Fail(Code::kNotFound, "this machine has no GPU " + uuid.value,
                "`stasis gpu ls` lists its GPUs");
  }
  // Waiting threads sleep, to leave the processors to the program.
  STASIS_TRY(check(gpu.fn_.cuDevicePrimaryCtxSetFlags_v2(gpu.device_, CU_CTX_SCHED_BLOCKING_SYNC),
                   "cuDevicePrimaryCtxSetFlags"));
  STASIS_TRY(Annotate(
      check(basic.cuDevicePrimaryCtxRetain(&gpu.context_, gpu.device_), "cuDevicePrimaryCtxRetain"),
      "create a context on " + uuid.value));
  STASIS_TRY(gpu.Use());
  // Lower limits make the context smaller (529 -> 269 MiB), because the pool for stacks is half of
  // it. The driver raises values that are too small. Errors are ignored.
  gpu.fn_.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 16);
  gpu.fn_.cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 1);
  gpu.fn_.cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 1);

  int rdma = 0;
  gpu.rdma_ = gpu.fn_.cuDeviceGetAttribute(
                  &rdma, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
                  gpu.device_) == CUDA_SUCCESS &&
              rdma != 0;
  CUmemAllocationProp properties = gpu.Properties();
  size_t granularity = 0;
  STASIS_TRY(check(gpu.fn_.cuMemGetAllocationGranularity(&granularity, &properties,
                                                         CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                   "cuMemGetAllocationGranularity"));
  if (granularity == 0) return Fail(Code::kInternal, "the driver reports no granularity");
  gpu.granularity_ = granularity;
  if (driver.kind->has_nvml) {
    if (auto nvml = device::cuda::Nvml::Open()) {
      for (const auto& user : nvml->UsersOf(uuid.value)) {
        if (user.pid == ::getpid()) gpu.context_bytes_ = user.bytes;
      }
    }
  }
  return gpu;
}

Status Gpu::Use() const {
  STASIS_GPU(*this, cuCtxSetCurrent, (context_));
  return {};
}

Result<Gpu::Memory> Gpu::ReadMemory() const {
  size_t free = 0, total = 0;
  if (CUresult result = basic_.cuMemGetInfo_v2(&free, &total); result != CUDA_SUCCESS) {
    return Fail(MakeError(result, "cuMemGetInfo"));
  }
  return Memory{free, total};
}

Status Gpu::CheckConnection() const {
  const CUmemAllocationProp properties = Properties();
  CUmemGenericAllocationHandle handle = 0;
  const CUresult created = fn_.cuMemCreate(&handle, granularity_, &properties, 0);
  if (IsHarmless(created)) return {};
  if (created != CUDA_SUCCESS) return Fail(MakeError(created, "cuMemCreate"));
  STASIS_GPU(*this, cuMemRelease, (handle));
  return {};
}

CUmemAllocationProp Gpu::Properties() const {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device_};
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.allocFlags.gpuDirectRDMACapable = rdma_;
  return properties;
}

}  // namespace stasis::dataplane
