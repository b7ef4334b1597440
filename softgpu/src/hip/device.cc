// HIP's own functions for devices: attributes, properties, the current device and peers.

#include <stdio.h>
#include <string.h>

#include "context.h"
#include "hip/face.h"

namespace softgpu::hip {
namespace {

using Lock = std::lock_guard<std::mutex>;

struct Attribute {
  hipDeviceAttribute_t hip;
  CUdevice_attribute driver;
};

constexpr Attribute kAttributes[] = {
    {hipDeviceAttributeEccEnabled, CU_DEVICE_ATTRIBUTE_ECC_ENABLED},
    {hipDeviceAttributeAsyncEngineCount, CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT},
    {hipDeviceAttributeCanMapHostMemory, CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY},
    {hipDeviceAttributeCanUseHostPointerForRegisteredMem,
     CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM},
    {hipDeviceAttributeClockRate, CU_DEVICE_ATTRIBUTE_CLOCK_RATE},
    {hipDeviceAttributeComputeMode, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE},
    {hipDeviceAttributeConcurrentKernels, CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS},
    {hipDeviceAttributeConcurrentManagedAccess, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS},
    {hipDeviceAttributeCooperativeLaunch, CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH},
    {hipDeviceAttributeIntegrated, CU_DEVICE_ATTRIBUTE_INTEGRATED},
    {hipDeviceAttributeL2CacheSize, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE},
    {hipDeviceAttributeComputeCapabilityMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR},
    {hipDeviceAttributeManagedMemory, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY},
    {hipDeviceAttributeMaxBlockDimX, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X},
    {hipDeviceAttributeMaxBlockDimY, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y},
    {hipDeviceAttributeMaxBlockDimZ, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z},
    {hipDeviceAttributeMaxGridDimX, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X},
    {hipDeviceAttributeMaxGridDimY, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y},
    {hipDeviceAttributeMaxGridDimZ, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z},
    {hipDeviceAttributeMaxThreadsPerBlock, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK},
    {hipDeviceAttributeMaxThreadsPerMultiProcessor,
     CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR},
    {hipDeviceAttributeMaxPitch, CU_DEVICE_ATTRIBUTE_MAX_PITCH},
    {hipDeviceAttributeMemoryBusWidth, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH},
    {hipDeviceAttributeMemoryClockRate, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE},
    {hipDeviceAttributeComputeCapabilityMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR},
    {hipDeviceAttributeMultiprocessorCount, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT},
    {hipDeviceAttributePciBusId, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID},
    {hipDeviceAttributePciDeviceId, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID},
    {hipDeviceAttributePciDomainID, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID},
    {hipDeviceAttributeMaxRegistersPerBlock, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK},
    {hipDeviceAttributeMaxSharedMemoryPerBlock, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK},
    {hipDeviceAttributeStreamPrioritiesSupported, CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED},
    {hipDeviceAttributeTextureAlignment, CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT},
    {hipDeviceAttributeTotalConstantMemory, CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY},
    {hipDeviceAttributeUnifiedAddressing, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING},
    {hipDeviceAttributeWarpSize, CU_DEVICE_ATTRIBUTE_WARP_SIZE},
    {hipDeviceAttributeMemoryPoolsSupported, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED},
    {hipDeviceAttributeVirtualMemoryManagementSupported,
     CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED},
    {hipDeviceAttributeHostRegisterSupported, CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED},
};

bool Known(int device) { return device >= 0 && device < driver().device_count; }

// Returns an attribute of a device that exists.
int Get(CUdevice_attribute attribute, int device) {
  int value = 0;
  softgpu::api::cuDeviceGetAttribute(&value, attribute, device);
  return value;
}

// Fills the fields that both versions of the structure have.
template <class Properties>
hipError_t Describe(Properties* p, int device) {
  if (p == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!Known(device)) return CUDA_ERROR_INVALID_DEVICE;
  memset(p, 0, sizeof(*p));
  softgpu::api::cuDeviceGetName(p->name, sizeof(p->name), device);
  softgpu::api::cuDeviceTotalMem_v2(&p->totalGlobalMem, device);
  p->sharedMemPerBlock = size_t(Get(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, device));
  p->regsPerBlock = Get(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, device);
  p->warpSize = Get(CU_DEVICE_ATTRIBUTE_WARP_SIZE, device);
  p->memPitch = size_t(Get(CU_DEVICE_ATTRIBUTE_MAX_PITCH, device));
  p->maxThreadsPerBlock = Get(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, device);
  for (int i = 0; i < 3; ++i) {
    p->maxThreadsDim[i] = Get(CUdevice_attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X + i), device);
    p->maxGridSize[i] = Get(CUdevice_attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X + i), device);
  }
  p->clockRate = Get(CU_DEVICE_ATTRIBUTE_CLOCK_RATE, device);
  p->memoryClockRate = Get(CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, device);
  p->memoryBusWidth = Get(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, device);
  p->totalConstMem = size_t(Get(CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, device));
  p->major = Get(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
  p->minor = Get(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
  p->multiProcessorCount = Get(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
  p->l2CacheSize = Get(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, device);
  p->maxThreadsPerMultiProcessor = Get(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device);
  p->concurrentKernels = 1;
  p->canMapHostMemory = 1;
  p->cooperativeLaunch = 1;
  p->managedMemory = 1;
  p->concurrentManagedAccess = 1;
  p->textureAlignment = size_t(Get(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, device));
  p->pciBusID = Get(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, device);
  snprintf(p->gcnArchName, sizeof(p->gcnArchName), "softgpu");
  return CUDA_SUCCESS;
}

}  // namespace

namespace own {

hipError_t hipDeviceGetAttribute(int* value, hipDeviceAttribute_t attribute, int device) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!Known(device)) return CUDA_ERROR_INVALID_DEVICE;
  for (const Attribute& known : kAttributes) {
    if (known.hip != attribute) continue;
    *value = Get(known.driver, device);
    return CUDA_SUCCESS;
  }
  *value = 0;
  return CUDA_SUCCESS;
}

hipError_t hipDeviceGetP2PAttribute(int* value, hipDeviceP2PAttr attribute, int source,
                                    int destination) {
  if (attribute < 0 || attribute > hipDevP2PAttrHipArrayAccessSupported) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return softgpu::api::cuDeviceGetP2PAttribute(value, CUdevice_P2PAttribute(attribute + 1), source,
                                               destination);
}

hipError_t hipGetDeviceProperties(hipDeviceProp_tR0000* properties, int device) {
  return Describe(properties, device);
}

hipError_t hipGetDevicePropertiesR0600(hipDeviceProp_tR0600* properties, int device) {
  if (hipError_t r = Describe(properties, device); r != CUDA_SUCCESS) return r;
  memcpy(properties->uuid.bytes, driver().devices[device].uuid, sizeof(properties->uuid.bytes));
  properties->unifiedAddressing = 1;
  properties->asyncEngineCount = Get(CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, device);
  properties->streamPrioritiesSupported = 1;
  properties->hostRegisterSupported = 1;
  properties->memoryPoolsSupported = 1;
  properties->ipcEventSupported = 1;
  return CUDA_SUCCESS;
}

hipError_t hipSetDevice(int device) {
  if (!Known(device)) return CUDA_ERROR_INVALID_DEVICE;
  SelectDevice(device);
  return CUDA_SUCCESS;
}

hipError_t hipDeviceReset() {
  int device = 0;
  if (hipError_t r = softgpu::api::cuCtxGetDevice(&device); r != CUDA_SUCCESS) return r;
  return softgpu::api::cuDevicePrimaryCtxReset_v2(device);
}

hipError_t hipDeviceEnablePeerAccess(int peer_device, unsigned int flags) {
  Context* peer = nullptr;
  {
    Lock lock(driver().mutex);
    if (hipError_t r = PrimaryContext(peer_device, &peer); r != CUDA_SUCCESS) return r;
  }
  return softgpu::api::cuCtxEnablePeerAccess(Handle(peer), flags);
}

hipError_t hipDeviceDisablePeerAccess(int peer_device) {
  Context* peer = nullptr;
  {
    Lock lock(driver().mutex);
    if (hipError_t r = PrimaryContext(peer_device, &peer); r != CUDA_SUCCESS) return r;
  }
  return softgpu::api::cuCtxDisablePeerAccess(Handle(peer));
}

}  // namespace own

namespace api {

// HIP keeps a primary context until the process ends.
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  return Known(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

}  // namespace api
}  // namespace softgpu::hip
