// Queries about devices.

#include "device.h"

#include <stdio.h>
#include <string.h>
#include <sys/vfs.h>

#include "api.h"
#include "context.h"
#include "driver.h"

namespace softgpu {

std::string FormatUuid(const unsigned char* u) {
  char text[48];
  snprintf(text, sizeof(text),
           "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1],
           u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14],
           u[15]);
  return text;
}

namespace {

constexpr char kName[] = "Software GPU (not a performance result)";

struct Attribute {
  CUdevice_attribute attribute;
  int value;
};

// Attributes that are not listed are 0: "no" or "none".
constexpr Attribute kAttributes[] = {
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 48 * 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 227 * 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 228 * 1024},
    {CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 64 * 1024},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
    {CU_DEVICE_ATTRIBUTE_MAX_PITCH, 2147483647},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
    {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1000000},
    {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 1000000},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 64},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512},
    {CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1},
    {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 2},
    {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 1},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
    {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 1 << 20},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
    {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1},
    {CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, 1},
    {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, 1},
};

int ValueOf(CUdevice_attribute attribute) {
  for (const Attribute& known : kAttributes) {
    if (known.attribute == attribute) return known.value;
  }
  return 0;
}

bool Known(CUdevice device) { return device >= 0 && device < driver().device_count; }

}  // namespace

namespace api {

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!Known(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = driver().device_count;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int len, CUdevice device) {
  if (name == nullptr || len <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (!Known(device)) return CUDA_ERROR_INVALID_DEVICE;
  snprintf(name, size_t(len), "%s", kName);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  if (uuid == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!Known(device)) return CUDA_ERROR_INVALID_DEVICE;
  std::lock_guard lock(driver().mutex);
  memcpy(uuid->bytes, driver().devices[device].uuid, sizeof(uuid->bytes));
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) { return cuDeviceGetUuid(uuid, device); }

CUresult cuDeviceGetLuid(char*, unsigned int*, CUdevice) { return CUDA_ERROR_NOT_SUPPORTED; }

CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!Known(device)) return CUDA_ERROR_INVALID_DEVICE;
  // Without its broker, a device behaves like a GPU that has fallen off the bus.
  if (driver().broker.IsLost()) return CUDA_ERROR_DEVICE_UNAVAILABLE;
  *bytes = driver().broker.config().memory_bytes;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!Known(device)) return CUDA_ERROR_INVALID_DEVICE;
  if (attribute <= 0 || attribute > CU_DEVICE_ATTRIBUTE_ONLY_PARTIAL_HOST_NATIVE_ATOMIC_SUPPORTED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *value = attribute == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID ? 0x10 + driver().devices[device].physical
                                                       : ValueOf(attribute);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetProperties(CUdevprop* prop, CUdevice device) {
  if (prop == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!Known(device)) return CUDA_ERROR_INVALID_DEVICE;
  *prop = {1024,
           {1024, 1024, 64},
           {2147483647, 65535, 65535},
           48 * 1024,
           64 * 1024,
           32,
           2147483647,
           65536,
           1000000,
           512};
  return CUDA_SUCCESS;
}

CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice device) {
  if (major == nullptr || minor == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!Known(device)) return CUDA_ERROR_INVALID_DEVICE;
  *major = ValueOf(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  *minor = ValueOf(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char* pci_bus_id, int len, CUdevice device) {
  if (pci_bus_id == nullptr || len < 13) return CUDA_ERROR_INVALID_VALUE;
  if (!Known(device)) return CUDA_ERROR_INVALID_DEVICE;
  snprintf(pci_bus_id, size_t(len), "0000:%02x:00.0", 0x10 + driver().devices[device].physical);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetByPCIBusId(CUdevice* device, const char* pci_bus_id) {
  if (device == nullptr || pci_bus_id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (int i = 0; i < driver().device_count; ++i) {
    char own[16];
    cuDeviceGetPCIBusId(own, sizeof(own), i);
    if (strcasecmp(own, pci_bus_id) != 0 && strcasecmp(own + 5, pci_bus_id) != 0) continue;
    *device = i;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  if (can == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!Known(device) || !Known(peer)) return CUDA_ERROR_INVALID_DEVICE;
  *can = device != peer ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attribute, CUdevice source,
                                 CUdevice destination) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!Known(source) || !Known(destination) || source == destination) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  *value = attribute == CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED ||
                   attribute == CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED
               ? 1
               : 0;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetExecAffinitySupport(int* value, CUexecAffinityType, CUdevice device) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!Known(device)) return CUDA_ERROR_INVALID_DEVICE;
  *value = 0;
  return CUDA_SUCCESS;
}

CUresult cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget,
                                    CUflushGPUDirectRDMAWritesScope) {
  return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
  std::lock_guard lock(driver().mutex);
  Context* context = nullptr;
  if (CUresult r = CurrentContext(&context); r != CUDA_SUCCESS) return r;
  struct statfs s;
  int folder = driver().broker.device_folder(driver().devices[context->ordinal].physical);
  if (fstatfs(folder, &s) != 0) return CUDA_ERROR_OPERATING_SYSTEM;
  if (free_bytes != nullptr) *free_bytes = size_t(s.f_bfree) * size_t(s.f_bsize);
  if (total != nullptr) *total = size_t(s.f_blocks) * size_t(s.f_bsize);
  return CUDA_SUCCESS;
}

}  // namespace api
}  // namespace softgpu
