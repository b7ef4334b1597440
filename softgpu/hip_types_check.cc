// Compares the enumerators and structures of HIP with those of abi/hip and abi/cuda at compile
// time. Generates no code. The header of HIP 5 is compared as far as HIP 6 has changed nothing.

#include "abi/hip/hip_abi.h"

// HIP defines these names as macros, so the constants are read before its headers are included.
namespace constants {
constexpr unsigned kOurs[] = {
    stasis::hip::hipHostMallocNumaUser,
    stasis::hip::hipHostMallocCoherent,
    stasis::hip::hipHostMallocNonCoherent,
    stasis::hip::hipEventDisableSystemFence,
    stasis::hip::hipEventReleaseToDevice,
    stasis::hip::hipEventReleaseToSystem,
    stasis::hip::hipDeviceMallocDefault,
    stasis::hip::hipDeviceMallocFinegrained,
    stasis::hip::hipMallocSignalMemory,
    stasis::hip::hipDeviceMallocUncached,
    stasis::cuda::CU_MEMHOSTALLOC_PORTABLE,
    stasis::cuda::CU_MEMHOSTALLOC_DEVICEMAP,
    stasis::cuda::CU_MEMHOSTALLOC_WRITECOMBINED,
    stasis::cuda::CU_MEMHOSTREGISTER_PORTABLE,
    stasis::cuda::CU_MEMHOSTREGISTER_DEVICEMAP,
    stasis::cuda::CU_MEMHOSTREGISTER_IOMEMORY,
    stasis::cuda::CU_MEMHOSTREGISTER_READ_ONLY,
    stasis::cuda::CU_STREAM_DEFAULT,
    stasis::cuda::CU_STREAM_NON_BLOCKING,
    stasis::cuda::CU_EVENT_DEFAULT,
    stasis::cuda::CU_EVENT_BLOCKING_SYNC,
    stasis::cuda::CU_EVENT_DISABLE_TIMING,
    stasis::cuda::CU_EVENT_INTERPROCESS,
    stasis::cuda::CU_MEM_ATTACH_GLOBAL,
    stasis::cuda::CU_MEM_ATTACH_HOST,
    stasis::cuda::CU_MEM_ATTACH_SINGLE,
    stasis::cuda::CU_CTX_SCHED_AUTO,
    stasis::cuda::CU_CTX_SCHED_SPIN,
    stasis::cuda::CU_CTX_SCHED_YIELD,
    stasis::cuda::CU_CTX_SCHED_BLOCKING_SYNC,
    stasis::cuda::CU_CTX_MAP_HOST,
    stasis::cuda::CU_CTX_LMEM_RESIZE_TO_MAX,
    stasis::cuda::CU_STREAM_WAIT_VALUE_GEQ,
    stasis::cuda::CU_STREAM_WAIT_VALUE_EQ,
    stasis::cuda::CU_STREAM_WAIT_VALUE_AND,
    stasis::cuda::CU_STREAM_WAIT_VALUE_NOR,
};
}  // namespace constants

#include "hip_header.h"

namespace {

namespace ours = stasis::hip;

constexpr unsigned kTheirs[] = {
    hipHostMallocNumaUser,      hipHostMallocCoherent,
    hipHostMallocNonCoherent,   hipEventDisableSystemFence,
    hipEventReleaseToDevice,    hipEventReleaseToSystem,
    hipDeviceMallocDefault,     hipDeviceMallocFinegrained,
    hipMallocSignalMemory,      hipDeviceMallocUncached,
    hipHostMallocPortable,      hipHostMallocMapped,
    hipHostMallocWriteCombined, hipHostRegisterPortable,
    hipHostRegisterMapped,      hipHostRegisterIoMemory,
    hipHostRegisterReadOnly,    hipStreamDefault,
    hipStreamNonBlocking,       hipEventDefault,
    hipEventBlockingSync,       hipEventDisableTiming,
    hipEventInterprocess,       hipMemAttachGlobal,
    hipMemAttachHost,           hipMemAttachSingle,
    hipDeviceScheduleAuto,      hipDeviceScheduleSpin,
    hipDeviceScheduleYield,     hipDeviceScheduleBlockingSync,
    hipDeviceMapHost,           hipDeviceLmemResizeToMax,
    hipStreamWaitValueGte,      hipStreamWaitValueEq,
    hipStreamWaitValueAnd,      hipStreamWaitValueNor,
};
constexpr bool SameConstants() {
  for (unsigned i = 0; i < sizeof(kTheirs) / sizeof(kTheirs[0]); ++i) {
    if (kTheirs[i] != constants::kOurs[i]) return false;
  }
  return true;
}
static_assert(SameConstants());

#define SAME_VALUE(name, theirs) static_assert(int(ours::name) == int(::theirs), #theirs)

#define STASIS_HIP_RESULT(name, result) SAME_VALUE(result, name);
#define STASIS_HIP_OWN_RESULT(name, value, text) SAME_VALUE(name, name);
#include "abi/hip/results.def"

// Enumerations that HIP and CUDA have in common
SAME_VALUE(CU_LIMIT_STACK_SIZE, hipLimitStackSize);
SAME_VALUE(CU_LIMIT_PRINTF_FIFO_SIZE, hipLimitPrintfFifoSize);
SAME_VALUE(CU_LIMIT_MALLOC_HEAP_SIZE, hipLimitMallocHeapSize);
SAME_VALUE(CU_FUNC_CACHE_PREFER_NONE, hipFuncCachePreferNone);
SAME_VALUE(CU_FUNC_CACHE_PREFER_SHARED, hipFuncCachePreferShared);
SAME_VALUE(CU_FUNC_CACHE_PREFER_L1, hipFuncCachePreferL1);
SAME_VALUE(CU_FUNC_CACHE_PREFER_EQUAL, hipFuncCachePreferEqual);
SAME_VALUE(CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE, hipSharedMemBankSizeDefault);
SAME_VALUE(CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE, hipSharedMemBankSizeFourByte);
SAME_VALUE(CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE, hipSharedMemBankSizeEightByte);
SAME_VALUE(CU_STREAM_CAPTURE_STATUS_NONE, hipStreamCaptureStatusNone);
SAME_VALUE(CU_STREAM_CAPTURE_STATUS_ACTIVE, hipStreamCaptureStatusActive);
SAME_VALUE(CU_STREAM_CAPTURE_STATUS_INVALIDATED, hipStreamCaptureStatusInvalidated);
SAME_VALUE(CU_STREAM_CAPTURE_MODE_GLOBAL, hipStreamCaptureModeGlobal);
SAME_VALUE(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, hipStreamCaptureModeThreadLocal);
SAME_VALUE(CU_STREAM_CAPTURE_MODE_RELAXED, hipStreamCaptureModeRelaxed);
SAME_VALUE(CU_MEM_HANDLE_TYPE_NONE, hipMemHandleTypeNone);
SAME_VALUE(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, hipMemHandleTypePosixFileDescriptor);
SAME_VALUE(CU_MEM_ACCESS_FLAGS_PROT_NONE, hipMemAccessFlagsProtNone);
SAME_VALUE(CU_MEM_ACCESS_FLAGS_PROT_READ, hipMemAccessFlagsProtRead);
SAME_VALUE(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, hipMemAccessFlagsProtReadWrite);
SAME_VALUE(CU_MEM_LOCATION_TYPE_INVALID, hipMemLocationTypeInvalid);
SAME_VALUE(CU_MEM_LOCATION_TYPE_DEVICE, hipMemLocationTypeDevice);
SAME_VALUE(CU_MEM_ALLOCATION_TYPE_INVALID, hipMemAllocationTypeInvalid);
SAME_VALUE(CU_MEM_ALLOCATION_TYPE_PINNED, hipMemAllocationTypePinned);
SAME_VALUE(CU_MEM_ALLOC_GRANULARITY_MINIMUM, hipMemAllocationGranularityMinimum);
SAME_VALUE(CU_MEM_ALLOC_GRANULARITY_RECOMMENDED, hipMemAllocationGranularityRecommended);
SAME_VALUE(CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, hipMemPoolReuseFollowEventDependencies);
SAME_VALUE(CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, hipMemPoolReuseAllowOpportunistic);
SAME_VALUE(CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
           hipMemPoolReuseAllowInternalDependencies);
SAME_VALUE(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, hipMemPoolAttrReleaseThreshold);
SAME_VALUE(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, hipMemPoolAttrReservedMemCurrent);
SAME_VALUE(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, hipMemPoolAttrReservedMemHigh);
SAME_VALUE(CU_MEMPOOL_ATTR_USED_MEM_CURRENT, hipMemPoolAttrUsedMemCurrent);
SAME_VALUE(CU_MEMPOOL_ATTR_USED_MEM_HIGH, hipMemPoolAttrUsedMemHigh);
SAME_VALUE(CU_MEM_ADVISE_SET_READ_MOSTLY, hipMemAdviseSetReadMostly);
SAME_VALUE(CU_MEM_ADVISE_UNSET_READ_MOSTLY, hipMemAdviseUnsetReadMostly);
SAME_VALUE(CU_MEM_ADVISE_SET_PREFERRED_LOCATION, hipMemAdviseSetPreferredLocation);
SAME_VALUE(CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, hipMemAdviseUnsetPreferredLocation);
SAME_VALUE(CU_MEM_ADVISE_SET_ACCESSED_BY, hipMemAdviseSetAccessedBy);
SAME_VALUE(CU_MEM_ADVISE_UNSET_ACCESSED_BY, hipMemAdviseUnsetAccessedBy);
SAME_VALUE(CU_POINTER_ATTRIBUTE_CONTEXT, HIP_POINTER_ATTRIBUTE_CONTEXT);
SAME_VALUE(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, HIP_POINTER_ATTRIBUTE_MEMORY_TYPE);
SAME_VALUE(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, HIP_POINTER_ATTRIBUTE_DEVICE_POINTER);
SAME_VALUE(CU_POINTER_ATTRIBUTE_HOST_POINTER, HIP_POINTER_ATTRIBUTE_HOST_POINTER);
SAME_VALUE(CU_POINTER_ATTRIBUTE_P2P_TOKENS, HIP_POINTER_ATTRIBUTE_P2P_TOKENS);
SAME_VALUE(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, HIP_POINTER_ATTRIBUTE_SYNC_MEMOPS);
SAME_VALUE(CU_POINTER_ATTRIBUTE_BUFFER_ID, HIP_POINTER_ATTRIBUTE_BUFFER_ID);
SAME_VALUE(CU_POINTER_ATTRIBUTE_IS_MANAGED, HIP_POINTER_ATTRIBUTE_IS_MANAGED);
SAME_VALUE(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
SAME_VALUE(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
           HIP_POINTER_ATTRIBUTE_IS_LEGACY_HIP_IPC_CAPABLE);
SAME_VALUE(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR);
SAME_VALUE(CU_POINTER_ATTRIBUTE_RANGE_SIZE, HIP_POINTER_ATTRIBUTE_RANGE_SIZE);
SAME_VALUE(CU_POINTER_ATTRIBUTE_MAPPED, HIP_POINTER_ATTRIBUTE_MAPPED);
SAME_VALUE(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, HIP_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES);
SAME_VALUE(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE,
           HIP_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE);
SAME_VALUE(CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, HIP_POINTER_ATTRIBUTE_ACCESS_FLAGS);
SAME_VALUE(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, HIP_POINTER_ATTRIBUTE_MEMPOOL_HANDLE);
SAME_VALUE(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
SAME_VALUE(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
SAME_VALUE(CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES, HIP_FUNC_ATTRIBUTE_CONST_SIZE_BYTES);
SAME_VALUE(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, HIP_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
SAME_VALUE(CU_FUNC_ATTRIBUTE_NUM_REGS, HIP_FUNC_ATTRIBUTE_NUM_REGS);
SAME_VALUE(CU_FUNC_ATTRIBUTE_PTX_VERSION, HIP_FUNC_ATTRIBUTE_PTX_VERSION);
SAME_VALUE(CU_FUNC_ATTRIBUTE_BINARY_VERSION, HIP_FUNC_ATTRIBUTE_BINARY_VERSION);
SAME_VALUE(CU_FUNC_ATTRIBUTE_CACHE_MODE_CA, HIP_FUNC_ATTRIBUTE_CACHE_MODE_CA);
SAME_VALUE(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
           HIP_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
SAME_VALUE(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
           HIP_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT);
SAME_VALUE(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
           hipFuncAttributeMaxDynamicSharedMemorySize);
SAME_VALUE(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
           hipFuncAttributePreferredSharedMemoryCarveout);

// HIP's own enumerations
SAME_VALUE(hipMemcpyHostToHost, hipMemcpyHostToHost);
SAME_VALUE(hipMemcpyHostToDevice, hipMemcpyHostToDevice);
SAME_VALUE(hipMemcpyDeviceToHost, hipMemcpyDeviceToHost);
SAME_VALUE(hipMemcpyDeviceToDevice, hipMemcpyDeviceToDevice);
SAME_VALUE(hipMemcpyDefault, hipMemcpyDefault);
SAME_VALUE(hipDevP2PAttrPerformanceRank, hipDevP2PAttrPerformanceRank);
SAME_VALUE(hipDevP2PAttrAccessSupported, hipDevP2PAttrAccessSupported);
SAME_VALUE(hipDevP2PAttrNativeAtomicSupported, hipDevP2PAttrNativeAtomicSupported);
SAME_VALUE(hipDevP2PAttrHipArrayAccessSupported, hipDevP2PAttrHipArrayAccessSupported);
SAME_VALUE(hipDeviceAttributeEccEnabled, hipDeviceAttributeEccEnabled);
SAME_VALUE(hipDeviceAttributeAsyncEngineCount, hipDeviceAttributeAsyncEngineCount);
SAME_VALUE(hipDeviceAttributeCanMapHostMemory, hipDeviceAttributeCanMapHostMemory);
SAME_VALUE(hipDeviceAttributeCanUseHostPointerForRegisteredMem,
           hipDeviceAttributeCanUseHostPointerForRegisteredMem);
SAME_VALUE(hipDeviceAttributeClockRate, hipDeviceAttributeClockRate);
SAME_VALUE(hipDeviceAttributeComputeMode, hipDeviceAttributeComputeMode);
SAME_VALUE(hipDeviceAttributeConcurrentKernels, hipDeviceAttributeConcurrentKernels);
SAME_VALUE(hipDeviceAttributeConcurrentManagedAccess, hipDeviceAttributeConcurrentManagedAccess);
SAME_VALUE(hipDeviceAttributeCooperativeLaunch, hipDeviceAttributeCooperativeLaunch);
SAME_VALUE(hipDeviceAttributeIntegrated, hipDeviceAttributeIntegrated);
SAME_VALUE(hipDeviceAttributeL2CacheSize, hipDeviceAttributeL2CacheSize);
SAME_VALUE(hipDeviceAttributeComputeCapabilityMajor, hipDeviceAttributeComputeCapabilityMajor);
SAME_VALUE(hipDeviceAttributeManagedMemory, hipDeviceAttributeManagedMemory);
SAME_VALUE(hipDeviceAttributeMaxBlockDimX, hipDeviceAttributeMaxBlockDimX);
SAME_VALUE(hipDeviceAttributeMaxBlockDimY, hipDeviceAttributeMaxBlockDimY);
SAME_VALUE(hipDeviceAttributeMaxBlockDimZ, hipDeviceAttributeMaxBlockDimZ);
SAME_VALUE(hipDeviceAttributeMaxGridDimX, hipDeviceAttributeMaxGridDimX);
SAME_VALUE(hipDeviceAttributeMaxGridDimY, hipDeviceAttributeMaxGridDimY);
SAME_VALUE(hipDeviceAttributeMaxGridDimZ, hipDeviceAttributeMaxGridDimZ);
SAME_VALUE(hipDeviceAttributeMaxThreadsPerBlock, hipDeviceAttributeMaxThreadsPerBlock);
SAME_VALUE(hipDeviceAttributeMaxThreadsPerMultiProcessor,
           hipDeviceAttributeMaxThreadsPerMultiProcessor);
SAME_VALUE(hipDeviceAttributeMaxPitch, hipDeviceAttributeMaxPitch);
SAME_VALUE(hipDeviceAttributeMemoryBusWidth, hipDeviceAttributeMemoryBusWidth);
SAME_VALUE(hipDeviceAttributeMemoryClockRate, hipDeviceAttributeMemoryClockRate);
SAME_VALUE(hipDeviceAttributeComputeCapabilityMinor, hipDeviceAttributeComputeCapabilityMinor);
SAME_VALUE(hipDeviceAttributeMultiprocessorCount, hipDeviceAttributeMultiprocessorCount);
SAME_VALUE(hipDeviceAttributePciBusId, hipDeviceAttributePciBusId);
SAME_VALUE(hipDeviceAttributePciDeviceId, hipDeviceAttributePciDeviceId);
SAME_VALUE(hipDeviceAttributePciDomainID, hipDeviceAttributePciDomainID);
SAME_VALUE(hipDeviceAttributeMaxRegistersPerBlock, hipDeviceAttributeMaxRegistersPerBlock);
SAME_VALUE(hipDeviceAttributeMaxSharedMemoryPerBlock, hipDeviceAttributeMaxSharedMemoryPerBlock);
SAME_VALUE(hipDeviceAttributeStreamPrioritiesSupported,
           hipDeviceAttributeStreamPrioritiesSupported);
SAME_VALUE(hipDeviceAttributeTextureAlignment, hipDeviceAttributeTextureAlignment);
SAME_VALUE(hipDeviceAttributeTotalConstantMemory, hipDeviceAttributeTotalConstantMemory);
SAME_VALUE(hipDeviceAttributeUnifiedAddressing, hipDeviceAttributeUnifiedAddressing);
SAME_VALUE(hipDeviceAttributeWarpSize, hipDeviceAttributeWarpSize);
SAME_VALUE(hipDeviceAttributeMemoryPoolsSupported, hipDeviceAttributeMemoryPoolsSupported);
SAME_VALUE(hipDeviceAttributeVirtualMemoryManagementSupported,
           hipDeviceAttributeVirtualMemoryManagementSupported);
SAME_VALUE(hipMemAdviseSetCoarseGrain, hipMemAdviseSetCoarseGrain);
SAME_VALUE(hipMemAdviseUnsetCoarseGrain, hipMemAdviseUnsetCoarseGrain);
#if HIP_VERSION_MAJOR >= 6
SAME_VALUE(hipDeviceAttributeHostRegisterSupported, hipDeviceAttributeHostRegisterSupported);
SAME_VALUE(hipMemcpyDeviceToDeviceNoCU, hipMemcpyDeviceToDeviceNoCU);
SAME_VALUE(hipMemoryTypeUnregistered, hipMemoryTypeUnregistered);
SAME_VALUE(hipMemoryTypeHost, hipMemoryTypeHost);
SAME_VALUE(hipMemoryTypeDevice, hipMemoryTypeDevice);
SAME_VALUE(hipMemoryTypeManaged, hipMemoryTypeManaged);
SAME_VALUE(hipMemoryTypeArray, hipMemoryTypeArray);
SAME_VALUE(hipMemoryTypeUnified, hipMemoryTypeUnified);
#endif

// Structures that HIP and CUDA have in common
#define SAME_SIZE(type, theirs) static_assert(sizeof(ours::type) == sizeof(::theirs), #theirs)
#define SAME_FIELD(type, field, theirs, their_field)                              \
  static_assert(offsetof(ours::type, field) == offsetof(::theirs, their_field) && \
                    sizeof(ours::type::field) == sizeof(::theirs::their_field),   \
                #theirs "." #their_field)
SAME_SIZE(CUuuid, hipUUID);
SAME_FIELD(CUuuid, bytes, hipUUID, bytes);
SAME_SIZE(CUipcMemHandle, hipIpcMemHandle_t);
SAME_FIELD(CUipcMemHandle, reserved, hipIpcMemHandle_t, reserved);
SAME_SIZE(CUipcEventHandle, hipIpcEventHandle_t);
SAME_FIELD(CUipcEventHandle, reserved, hipIpcEventHandle_t, reserved);
SAME_SIZE(CUmemLocation, hipMemLocation);
SAME_FIELD(CUmemLocation, type, hipMemLocation, type);
SAME_FIELD(CUmemLocation, id, hipMemLocation, id);
SAME_SIZE(CUmemAccessDesc, hipMemAccessDesc);
SAME_FIELD(CUmemAccessDesc, location, hipMemAccessDesc, location);
SAME_FIELD(CUmemAccessDesc, flags, hipMemAccessDesc, flags);
SAME_SIZE(CUmemAllocationProp, hipMemAllocationProp);
SAME_FIELD(CUmemAllocationProp, type, hipMemAllocationProp, type);
SAME_FIELD(CUmemAllocationProp, requestedHandleTypes, hipMemAllocationProp, requestedHandleType);
SAME_FIELD(CUmemAllocationProp, location, hipMemAllocationProp, location);
SAME_FIELD(CUmemAllocationProp, win32HandleMetaData, hipMemAllocationProp, win32HandleMetaData);
SAME_FIELD(CUmemAllocationProp, allocFlags.compressionType, hipMemAllocationProp,
           allocFlags.compressionType);
SAME_FIELD(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable, hipMemAllocationProp,
           allocFlags.gpuDirectRDMACapable);
SAME_FIELD(CUmemAllocationProp, allocFlags.usage, hipMemAllocationProp, allocFlags.usage);
// The rest of CUDA's allocFlags is padding in HIP.
static_assert(sizeof(::hipMemAllocationProp::allocFlags) == 4);
SAME_SIZE(CUmemPoolProps, hipMemPoolProps);
SAME_FIELD(CUmemPoolProps, allocType, hipMemPoolProps, allocType);
SAME_FIELD(CUmemPoolProps, handleTypes, hipMemPoolProps, handleTypes);
SAME_FIELD(CUmemPoolProps, location, hipMemPoolProps, location);
SAME_FIELD(CUmemPoolProps, win32SecurityAttributes, hipMemPoolProps, win32SecurityAttributes);
SAME_SIZE(CUmemPoolPtrExportData, hipMemPoolPtrExportData);
SAME_FIELD(CUmemPoolPtrExportData, reserved, hipMemPoolPtrExportData, reserved);

// HIP's own structures
SAME_SIZE(dim3, dim3);
SAME_FIELD(dim3, x, dim3, x);
SAME_FIELD(dim3, y, dim3, y);
SAME_FIELD(dim3, z, dim3, z);
SAME_SIZE(hipPitchedPtr, hipPitchedPtr);
SAME_FIELD(hipPitchedPtr, ptr, hipPitchedPtr, ptr);
SAME_FIELD(hipPitchedPtr, pitch, hipPitchedPtr, pitch);
SAME_FIELD(hipPitchedPtr, xsize, hipPitchedPtr, xsize);
SAME_FIELD(hipPitchedPtr, ysize, hipPitchedPtr, ysize);
SAME_SIZE(hipExtent, hipExtent);
SAME_FIELD(hipExtent, width, hipExtent, width);
SAME_FIELD(hipExtent, height, hipExtent, height);
SAME_FIELD(hipExtent, depth, hipExtent, depth);
SAME_SIZE(hipPos, hipPos);
SAME_FIELD(hipPos, x, hipPos, x);
SAME_FIELD(hipPos, y, hipPos, y);
SAME_FIELD(hipPos, z, hipPos, z);
SAME_SIZE(hipChannelFormatDesc, hipChannelFormatDesc);
SAME_FIELD(hipChannelFormatDesc, x, hipChannelFormatDesc, x);
SAME_FIELD(hipChannelFormatDesc, y, hipChannelFormatDesc, y);
SAME_FIELD(hipChannelFormatDesc, z, hipChannelFormatDesc, z);
SAME_FIELD(hipChannelFormatDesc, w, hipChannelFormatDesc, w);
SAME_FIELD(hipChannelFormatDesc, f, hipChannelFormatDesc, f);
SAME_SIZE(hipPointerAttribute_t, hipPointerAttribute_t);
SAME_FIELD(hipPointerAttribute_t, device, hipPointerAttribute_t, device);
SAME_FIELD(hipPointerAttribute_t, devicePointer, hipPointerAttribute_t, devicePointer);
SAME_FIELD(hipPointerAttribute_t, hostPointer, hipPointerAttribute_t, hostPointer);
SAME_FIELD(hipPointerAttribute_t, isManaged, hipPointerAttribute_t, isManaged);
SAME_FIELD(hipPointerAttribute_t, allocationFlags, hipPointerAttribute_t, allocationFlags);
SAME_SIZE(hipFuncAttributes, hipFuncAttributes);
SAME_FIELD(hipFuncAttributes, binaryVersion, hipFuncAttributes, binaryVersion);
SAME_FIELD(hipFuncAttributes, cacheModeCA, hipFuncAttributes, cacheModeCA);
SAME_FIELD(hipFuncAttributes, constSizeBytes, hipFuncAttributes, constSizeBytes);
SAME_FIELD(hipFuncAttributes, localSizeBytes, hipFuncAttributes, localSizeBytes);
SAME_FIELD(hipFuncAttributes, maxDynamicSharedSizeBytes, hipFuncAttributes,
           maxDynamicSharedSizeBytes);
SAME_FIELD(hipFuncAttributes, maxThreadsPerBlock, hipFuncAttributes, maxThreadsPerBlock);
SAME_FIELD(hipFuncAttributes, numRegs, hipFuncAttributes, numRegs);
SAME_FIELD(hipFuncAttributes, preferredShmemCarveout, hipFuncAttributes, preferredShmemCarveout);
SAME_FIELD(hipFuncAttributes, ptxVersion, hipFuncAttributes, ptxVersion);
SAME_FIELD(hipFuncAttributes, sharedSizeBytes, hipFuncAttributes, sharedSizeBytes);
SAME_SIZE(hip_Memcpy2D, hip_Memcpy2D);
SAME_FIELD(hip_Memcpy2D, srcXInBytes, hip_Memcpy2D, srcXInBytes);
SAME_FIELD(hip_Memcpy2D, srcY, hip_Memcpy2D, srcY);
SAME_FIELD(hip_Memcpy2D, srcMemoryType, hip_Memcpy2D, srcMemoryType);
SAME_FIELD(hip_Memcpy2D, srcHost, hip_Memcpy2D, srcHost);
SAME_FIELD(hip_Memcpy2D, srcDevice, hip_Memcpy2D, srcDevice);
SAME_FIELD(hip_Memcpy2D, srcArray, hip_Memcpy2D, srcArray);
SAME_FIELD(hip_Memcpy2D, srcPitch, hip_Memcpy2D, srcPitch);
SAME_FIELD(hip_Memcpy2D, dstXInBytes, hip_Memcpy2D, dstXInBytes);
SAME_FIELD(hip_Memcpy2D, dstY, hip_Memcpy2D, dstY);
SAME_FIELD(hip_Memcpy2D, dstMemoryType, hip_Memcpy2D, dstMemoryType);
SAME_FIELD(hip_Memcpy2D, dstHost, hip_Memcpy2D, dstHost);
SAME_FIELD(hip_Memcpy2D, dstDevice, hip_Memcpy2D, dstDevice);
SAME_FIELD(hip_Memcpy2D, dstArray, hip_Memcpy2D, dstArray);
SAME_FIELD(hip_Memcpy2D, dstPitch, hip_Memcpy2D, dstPitch);
SAME_FIELD(hip_Memcpy2D, WidthInBytes, hip_Memcpy2D, WidthInBytes);
SAME_FIELD(hip_Memcpy2D, Height, hip_Memcpy2D, Height);
SAME_SIZE(hipMemcpy3DParms, hipMemcpy3DParms);
SAME_FIELD(hipMemcpy3DParms, srcArray, hipMemcpy3DParms, srcArray);
SAME_FIELD(hipMemcpy3DParms, srcPos, hipMemcpy3DParms, srcPos);
SAME_FIELD(hipMemcpy3DParms, srcPtr, hipMemcpy3DParms, srcPtr);
SAME_FIELD(hipMemcpy3DParms, dstArray, hipMemcpy3DParms, dstArray);
SAME_FIELD(hipMemcpy3DParms, dstPos, hipMemcpy3DParms, dstPos);
SAME_FIELD(hipMemcpy3DParms, dstPtr, hipMemcpy3DParms, dstPtr);
SAME_FIELD(hipMemcpy3DParms, extent, hipMemcpy3DParms, extent);
SAME_FIELD(hipMemcpy3DParms, kind, hipMemcpy3DParms, kind);
SAME_FIELD(hipPointerAttribute_t, type, hipPointerAttribute_t, type);
#if HIP_VERSION_MAJOR >= 6
SAME_SIZE(HIP_MEMCPY3D, HIP_MEMCPY3D);
SAME_FIELD(HIP_MEMCPY3D, srcXInBytes, HIP_MEMCPY3D, srcXInBytes);
SAME_FIELD(HIP_MEMCPY3D, srcY, HIP_MEMCPY3D, srcY);
SAME_FIELD(HIP_MEMCPY3D, srcZ, HIP_MEMCPY3D, srcZ);
SAME_FIELD(HIP_MEMCPY3D, srcLOD, HIP_MEMCPY3D, srcLOD);
SAME_FIELD(HIP_MEMCPY3D, srcMemoryType, HIP_MEMCPY3D, srcMemoryType);
SAME_FIELD(HIP_MEMCPY3D, srcHost, HIP_MEMCPY3D, srcHost);
SAME_FIELD(HIP_MEMCPY3D, srcDevice, HIP_MEMCPY3D, srcDevice);
SAME_FIELD(HIP_MEMCPY3D, srcArray, HIP_MEMCPY3D, srcArray);
SAME_FIELD(HIP_MEMCPY3D, srcPitch, HIP_MEMCPY3D, srcPitch);
SAME_FIELD(HIP_MEMCPY3D, srcHeight, HIP_MEMCPY3D, srcHeight);
SAME_FIELD(HIP_MEMCPY3D, dstXInBytes, HIP_MEMCPY3D, dstXInBytes);
SAME_FIELD(HIP_MEMCPY3D, dstY, HIP_MEMCPY3D, dstY);
SAME_FIELD(HIP_MEMCPY3D, dstZ, HIP_MEMCPY3D, dstZ);
SAME_FIELD(HIP_MEMCPY3D, dstLOD, HIP_MEMCPY3D, dstLOD);
SAME_FIELD(HIP_MEMCPY3D, dstMemoryType, HIP_MEMCPY3D, dstMemoryType);
SAME_FIELD(HIP_MEMCPY3D, dstHost, HIP_MEMCPY3D, dstHost);
SAME_FIELD(HIP_MEMCPY3D, dstDevice, HIP_MEMCPY3D, dstDevice);
SAME_FIELD(HIP_MEMCPY3D, dstArray, HIP_MEMCPY3D, dstArray);
SAME_FIELD(HIP_MEMCPY3D, dstPitch, HIP_MEMCPY3D, dstPitch);
SAME_FIELD(HIP_MEMCPY3D, dstHeight, HIP_MEMCPY3D, dstHeight);
SAME_FIELD(HIP_MEMCPY3D, WidthInBytes, HIP_MEMCPY3D, WidthInBytes);
SAME_FIELD(HIP_MEMCPY3D, Height, HIP_MEMCPY3D, Height);
SAME_FIELD(HIP_MEMCPY3D, Depth, HIP_MEMCPY3D, Depth);
SAME_SIZE(hipDeviceProp_tR0600, hipDeviceProp_tR0600);
SAME_FIELD(hipDeviceProp_tR0600, name, hipDeviceProp_tR0600, name);
SAME_FIELD(hipDeviceProp_tR0600, uuid, hipDeviceProp_tR0600, uuid);
SAME_FIELD(hipDeviceProp_tR0600, luid, hipDeviceProp_tR0600, luid);
SAME_FIELD(hipDeviceProp_tR0600, luidDeviceNodeMask, hipDeviceProp_tR0600, luidDeviceNodeMask);
SAME_FIELD(hipDeviceProp_tR0600, totalGlobalMem, hipDeviceProp_tR0600, totalGlobalMem);
SAME_FIELD(hipDeviceProp_tR0600, sharedMemPerBlock, hipDeviceProp_tR0600, sharedMemPerBlock);
SAME_FIELD(hipDeviceProp_tR0600, regsPerBlock, hipDeviceProp_tR0600, regsPerBlock);
SAME_FIELD(hipDeviceProp_tR0600, warpSize, hipDeviceProp_tR0600, warpSize);
SAME_FIELD(hipDeviceProp_tR0600, memPitch, hipDeviceProp_tR0600, memPitch);
SAME_FIELD(hipDeviceProp_tR0600, maxThreadsPerBlock, hipDeviceProp_tR0600, maxThreadsPerBlock);
SAME_FIELD(hipDeviceProp_tR0600, maxThreadsDim, hipDeviceProp_tR0600, maxThreadsDim);
SAME_FIELD(hipDeviceProp_tR0600, maxGridSize, hipDeviceProp_tR0600, maxGridSize);
SAME_FIELD(hipDeviceProp_tR0600, clockRate, hipDeviceProp_tR0600, clockRate);
SAME_FIELD(hipDeviceProp_tR0600, totalConstMem, hipDeviceProp_tR0600, totalConstMem);
SAME_FIELD(hipDeviceProp_tR0600, major, hipDeviceProp_tR0600, major);
SAME_FIELD(hipDeviceProp_tR0600, minor, hipDeviceProp_tR0600, minor);
SAME_FIELD(hipDeviceProp_tR0600, textureAlignment, hipDeviceProp_tR0600, textureAlignment);
SAME_FIELD(hipDeviceProp_tR0600, texturePitchAlignment, hipDeviceProp_tR0600,
           texturePitchAlignment);
SAME_FIELD(hipDeviceProp_tR0600, deviceOverlap, hipDeviceProp_tR0600, deviceOverlap);
SAME_FIELD(hipDeviceProp_tR0600, multiProcessorCount, hipDeviceProp_tR0600, multiProcessorCount);
SAME_FIELD(hipDeviceProp_tR0600, kernelExecTimeoutEnabled, hipDeviceProp_tR0600,
           kernelExecTimeoutEnabled);
SAME_FIELD(hipDeviceProp_tR0600, integrated, hipDeviceProp_tR0600, integrated);
SAME_FIELD(hipDeviceProp_tR0600, canMapHostMemory, hipDeviceProp_tR0600, canMapHostMemory);
SAME_FIELD(hipDeviceProp_tR0600, computeMode, hipDeviceProp_tR0600, computeMode);
SAME_FIELD(hipDeviceProp_tR0600, surfaceAlignment, hipDeviceProp_tR0600, surfaceAlignment);
SAME_FIELD(hipDeviceProp_tR0600, concurrentKernels, hipDeviceProp_tR0600, concurrentKernels);
SAME_FIELD(hipDeviceProp_tR0600, ECCEnabled, hipDeviceProp_tR0600, ECCEnabled);
SAME_FIELD(hipDeviceProp_tR0600, pciBusID, hipDeviceProp_tR0600, pciBusID);
SAME_FIELD(hipDeviceProp_tR0600, pciDeviceID, hipDeviceProp_tR0600, pciDeviceID);
SAME_FIELD(hipDeviceProp_tR0600, pciDomainID, hipDeviceProp_tR0600, pciDomainID);
SAME_FIELD(hipDeviceProp_tR0600, tccDriver, hipDeviceProp_tR0600, tccDriver);
SAME_FIELD(hipDeviceProp_tR0600, asyncEngineCount, hipDeviceProp_tR0600, asyncEngineCount);
SAME_FIELD(hipDeviceProp_tR0600, unifiedAddressing, hipDeviceProp_tR0600, unifiedAddressing);
SAME_FIELD(hipDeviceProp_tR0600, memoryClockRate, hipDeviceProp_tR0600, memoryClockRate);
SAME_FIELD(hipDeviceProp_tR0600, memoryBusWidth, hipDeviceProp_tR0600, memoryBusWidth);
SAME_FIELD(hipDeviceProp_tR0600, l2CacheSize, hipDeviceProp_tR0600, l2CacheSize);
SAME_FIELD(hipDeviceProp_tR0600, persistingL2CacheMaxSize, hipDeviceProp_tR0600,
           persistingL2CacheMaxSize);
SAME_FIELD(hipDeviceProp_tR0600, maxThreadsPerMultiProcessor, hipDeviceProp_tR0600,
           maxThreadsPerMultiProcessor);
SAME_FIELD(hipDeviceProp_tR0600, streamPrioritiesSupported, hipDeviceProp_tR0600,
           streamPrioritiesSupported);
SAME_FIELD(hipDeviceProp_tR0600, globalL1CacheSupported, hipDeviceProp_tR0600,
           globalL1CacheSupported);
SAME_FIELD(hipDeviceProp_tR0600, localL1CacheSupported, hipDeviceProp_tR0600,
           localL1CacheSupported);
SAME_FIELD(hipDeviceProp_tR0600, sharedMemPerMultiprocessor, hipDeviceProp_tR0600,
           sharedMemPerMultiprocessor);
SAME_FIELD(hipDeviceProp_tR0600, regsPerMultiprocessor, hipDeviceProp_tR0600,
           regsPerMultiprocessor);
SAME_FIELD(hipDeviceProp_tR0600, managedMemory, hipDeviceProp_tR0600, managedMemory);
SAME_FIELD(hipDeviceProp_tR0600, isMultiGpuBoard, hipDeviceProp_tR0600, isMultiGpuBoard);
SAME_FIELD(hipDeviceProp_tR0600, multiGpuBoardGroupID, hipDeviceProp_tR0600, multiGpuBoardGroupID);
SAME_FIELD(hipDeviceProp_tR0600, hostNativeAtomicSupported, hipDeviceProp_tR0600,
           hostNativeAtomicSupported);
SAME_FIELD(hipDeviceProp_tR0600, singleToDoublePrecisionPerfRatio, hipDeviceProp_tR0600,
           singleToDoublePrecisionPerfRatio);
SAME_FIELD(hipDeviceProp_tR0600, pageableMemoryAccess, hipDeviceProp_tR0600, pageableMemoryAccess);
SAME_FIELD(hipDeviceProp_tR0600, concurrentManagedAccess, hipDeviceProp_tR0600,
           concurrentManagedAccess);
SAME_FIELD(hipDeviceProp_tR0600, computePreemptionSupported, hipDeviceProp_tR0600,
           computePreemptionSupported);
SAME_FIELD(hipDeviceProp_tR0600, canUseHostPointerForRegisteredMem, hipDeviceProp_tR0600,
           canUseHostPointerForRegisteredMem);
SAME_FIELD(hipDeviceProp_tR0600, cooperativeLaunch, hipDeviceProp_tR0600, cooperativeLaunch);
SAME_FIELD(hipDeviceProp_tR0600, cooperativeMultiDeviceLaunch, hipDeviceProp_tR0600,
           cooperativeMultiDeviceLaunch);
SAME_FIELD(hipDeviceProp_tR0600, sharedMemPerBlockOptin, hipDeviceProp_tR0600,
           sharedMemPerBlockOptin);
SAME_FIELD(hipDeviceProp_tR0600, pageableMemoryAccessUsesHostPageTables, hipDeviceProp_tR0600,
           pageableMemoryAccessUsesHostPageTables);
SAME_FIELD(hipDeviceProp_tR0600, directManagedMemAccessFromHost, hipDeviceProp_tR0600,
           directManagedMemAccessFromHost);
SAME_FIELD(hipDeviceProp_tR0600, maxBlocksPerMultiProcessor, hipDeviceProp_tR0600,
           maxBlocksPerMultiProcessor);
SAME_FIELD(hipDeviceProp_tR0600, accessPolicyMaxWindowSize, hipDeviceProp_tR0600,
           accessPolicyMaxWindowSize);
SAME_FIELD(hipDeviceProp_tR0600, reservedSharedMemPerBlock, hipDeviceProp_tR0600,
           reservedSharedMemPerBlock);
SAME_FIELD(hipDeviceProp_tR0600, hostRegisterSupported, hipDeviceProp_tR0600,
           hostRegisterSupported);
SAME_FIELD(hipDeviceProp_tR0600, sparseHipArraySupported, hipDeviceProp_tR0600,
           sparseHipArraySupported);
SAME_FIELD(hipDeviceProp_tR0600, hostRegisterReadOnlySupported, hipDeviceProp_tR0600,
           hostRegisterReadOnlySupported);
SAME_FIELD(hipDeviceProp_tR0600, timelineSemaphoreInteropSupported, hipDeviceProp_tR0600,
           timelineSemaphoreInteropSupported);
SAME_FIELD(hipDeviceProp_tR0600, memoryPoolsSupported, hipDeviceProp_tR0600, memoryPoolsSupported);
SAME_FIELD(hipDeviceProp_tR0600, gpuDirectRDMASupported, hipDeviceProp_tR0600,
           gpuDirectRDMASupported);
SAME_FIELD(hipDeviceProp_tR0600, gpuDirectRDMAFlushWritesOptions, hipDeviceProp_tR0600,
           gpuDirectRDMAFlushWritesOptions);
SAME_FIELD(hipDeviceProp_tR0600, gpuDirectRDMAWritesOrdering, hipDeviceProp_tR0600,
           gpuDirectRDMAWritesOrdering);
SAME_FIELD(hipDeviceProp_tR0600, memoryPoolSupportedHandleTypes, hipDeviceProp_tR0600,
           memoryPoolSupportedHandleTypes);
SAME_FIELD(hipDeviceProp_tR0600, deferredMappingHipArraySupported, hipDeviceProp_tR0600,
           deferredMappingHipArraySupported);
SAME_FIELD(hipDeviceProp_tR0600, ipcEventSupported, hipDeviceProp_tR0600, ipcEventSupported);
SAME_FIELD(hipDeviceProp_tR0600, clusterLaunch, hipDeviceProp_tR0600, clusterLaunch);
SAME_FIELD(hipDeviceProp_tR0600, unifiedFunctionPointers, hipDeviceProp_tR0600,
           unifiedFunctionPointers);
SAME_FIELD(hipDeviceProp_tR0600, reserved, hipDeviceProp_tR0600, reserved);
SAME_FIELD(hipDeviceProp_tR0600, hipReserved, hipDeviceProp_tR0600, hipReserved);
SAME_FIELD(hipDeviceProp_tR0600, gcnArchName, hipDeviceProp_tR0600, gcnArchName);
SAME_FIELD(hipDeviceProp_tR0600, maxSharedMemoryPerMultiProcessor, hipDeviceProp_tR0600,
           maxSharedMemoryPerMultiProcessor);
SAME_FIELD(hipDeviceProp_tR0600, clockInstructionRate, hipDeviceProp_tR0600, clockInstructionRate);
SAME_FIELD(hipDeviceProp_tR0600, arch, hipDeviceProp_tR0600, arch);
SAME_FIELD(hipDeviceProp_tR0600, hdpMemFlushCntl, hipDeviceProp_tR0600, hdpMemFlushCntl);
SAME_FIELD(hipDeviceProp_tR0600, hdpRegFlushCntl, hipDeviceProp_tR0600, hdpRegFlushCntl);
SAME_FIELD(hipDeviceProp_tR0600, cooperativeMultiDeviceUnmatchedFunc, hipDeviceProp_tR0600,
           cooperativeMultiDeviceUnmatchedFunc);
SAME_FIELD(hipDeviceProp_tR0600, cooperativeMultiDeviceUnmatchedGridDim, hipDeviceProp_tR0600,
           cooperativeMultiDeviceUnmatchedGridDim);
SAME_FIELD(hipDeviceProp_tR0600, cooperativeMultiDeviceUnmatchedBlockDim, hipDeviceProp_tR0600,
           cooperativeMultiDeviceUnmatchedBlockDim);
SAME_FIELD(hipDeviceProp_tR0600, cooperativeMultiDeviceUnmatchedSharedMem, hipDeviceProp_tR0600,
           cooperativeMultiDeviceUnmatchedSharedMem);
SAME_FIELD(hipDeviceProp_tR0600, isLargeBar, hipDeviceProp_tR0600, isLargeBar);
SAME_FIELD(hipDeviceProp_tR0600, asicRevision, hipDeviceProp_tR0600, asicRevision);
#else
SAME_SIZE(hipDeviceProp_tR0000, hipDeviceProp_t);
SAME_FIELD(hipDeviceProp_tR0000, name, hipDeviceProp_t, name);
SAME_FIELD(hipDeviceProp_tR0000, totalGlobalMem, hipDeviceProp_t, totalGlobalMem);
SAME_FIELD(hipDeviceProp_tR0000, sharedMemPerBlock, hipDeviceProp_t, sharedMemPerBlock);
SAME_FIELD(hipDeviceProp_tR0000, regsPerBlock, hipDeviceProp_t, regsPerBlock);
SAME_FIELD(hipDeviceProp_tR0000, warpSize, hipDeviceProp_t, warpSize);
SAME_FIELD(hipDeviceProp_tR0000, maxThreadsPerBlock, hipDeviceProp_t, maxThreadsPerBlock);
SAME_FIELD(hipDeviceProp_tR0000, maxThreadsDim, hipDeviceProp_t, maxThreadsDim);
SAME_FIELD(hipDeviceProp_tR0000, maxGridSize, hipDeviceProp_t, maxGridSize);
SAME_FIELD(hipDeviceProp_tR0000, clockRate, hipDeviceProp_t, clockRate);
SAME_FIELD(hipDeviceProp_tR0000, memoryClockRate, hipDeviceProp_t, memoryClockRate);
SAME_FIELD(hipDeviceProp_tR0000, memoryBusWidth, hipDeviceProp_t, memoryBusWidth);
SAME_FIELD(hipDeviceProp_tR0000, totalConstMem, hipDeviceProp_t, totalConstMem);
SAME_FIELD(hipDeviceProp_tR0000, major, hipDeviceProp_t, major);
SAME_FIELD(hipDeviceProp_tR0000, minor, hipDeviceProp_t, minor);
SAME_FIELD(hipDeviceProp_tR0000, multiProcessorCount, hipDeviceProp_t, multiProcessorCount);
SAME_FIELD(hipDeviceProp_tR0000, l2CacheSize, hipDeviceProp_t, l2CacheSize);
SAME_FIELD(hipDeviceProp_tR0000, maxThreadsPerMultiProcessor, hipDeviceProp_t,
           maxThreadsPerMultiProcessor);
SAME_FIELD(hipDeviceProp_tR0000, computeMode, hipDeviceProp_t, computeMode);
SAME_FIELD(hipDeviceProp_tR0000, clockInstructionRate, hipDeviceProp_t, clockInstructionRate);
SAME_FIELD(hipDeviceProp_tR0000, arch, hipDeviceProp_t, arch);
SAME_FIELD(hipDeviceProp_tR0000, concurrentKernels, hipDeviceProp_t, concurrentKernels);
SAME_FIELD(hipDeviceProp_tR0000, pciDomainID, hipDeviceProp_t, pciDomainID);
SAME_FIELD(hipDeviceProp_tR0000, pciBusID, hipDeviceProp_t, pciBusID);
SAME_FIELD(hipDeviceProp_tR0000, pciDeviceID, hipDeviceProp_t, pciDeviceID);
SAME_FIELD(hipDeviceProp_tR0000, maxSharedMemoryPerMultiProcessor, hipDeviceProp_t,
           maxSharedMemoryPerMultiProcessor);
SAME_FIELD(hipDeviceProp_tR0000, isMultiGpuBoard, hipDeviceProp_t, isMultiGpuBoard);
SAME_FIELD(hipDeviceProp_tR0000, canMapHostMemory, hipDeviceProp_t, canMapHostMemory);
SAME_FIELD(hipDeviceProp_tR0000, gcnArch, hipDeviceProp_t, gcnArch);
SAME_FIELD(hipDeviceProp_tR0000, gcnArchName, hipDeviceProp_t, gcnArchName);
SAME_FIELD(hipDeviceProp_tR0000, integrated, hipDeviceProp_t, integrated);
SAME_FIELD(hipDeviceProp_tR0000, cooperativeLaunch, hipDeviceProp_t, cooperativeLaunch);
SAME_FIELD(hipDeviceProp_tR0000, cooperativeMultiDeviceLaunch, hipDeviceProp_t,
           cooperativeMultiDeviceLaunch);
SAME_FIELD(hipDeviceProp_tR0000, hdpMemFlushCntl, hipDeviceProp_t, hdpMemFlushCntl);
SAME_FIELD(hipDeviceProp_tR0000, hdpRegFlushCntl, hipDeviceProp_t, hdpRegFlushCntl);
SAME_FIELD(hipDeviceProp_tR0000, memPitch, hipDeviceProp_t, memPitch);
SAME_FIELD(hipDeviceProp_tR0000, textureAlignment, hipDeviceProp_t, textureAlignment);
SAME_FIELD(hipDeviceProp_tR0000, texturePitchAlignment, hipDeviceProp_t, texturePitchAlignment);
SAME_FIELD(hipDeviceProp_tR0000, kernelExecTimeoutEnabled, hipDeviceProp_t,
           kernelExecTimeoutEnabled);
SAME_FIELD(hipDeviceProp_tR0000, ECCEnabled, hipDeviceProp_t, ECCEnabled);
SAME_FIELD(hipDeviceProp_tR0000, tccDriver, hipDeviceProp_t, tccDriver);
SAME_FIELD(hipDeviceProp_tR0000, cooperativeMultiDeviceUnmatchedFunc, hipDeviceProp_t,
           cooperativeMultiDeviceUnmatchedFunc);
SAME_FIELD(hipDeviceProp_tR0000, cooperativeMultiDeviceUnmatchedGridDim, hipDeviceProp_t,
           cooperativeMultiDeviceUnmatchedGridDim);
SAME_FIELD(hipDeviceProp_tR0000, cooperativeMultiDeviceUnmatchedBlockDim, hipDeviceProp_t,
           cooperativeMultiDeviceUnmatchedBlockDim);
SAME_FIELD(hipDeviceProp_tR0000, cooperativeMultiDeviceUnmatchedSharedMem, hipDeviceProp_t,
           cooperativeMultiDeviceUnmatchedSharedMem);
SAME_FIELD(hipDeviceProp_tR0000, isLargeBar, hipDeviceProp_t, isLargeBar);
SAME_FIELD(hipDeviceProp_tR0000, asicRevision, hipDeviceProp_t, asicRevision);
SAME_FIELD(hipDeviceProp_tR0000, managedMemory, hipDeviceProp_t, managedMemory);
SAME_FIELD(hipDeviceProp_tR0000, directManagedMemAccessFromHost, hipDeviceProp_t,
           directManagedMemAccessFromHost);
SAME_FIELD(hipDeviceProp_tR0000, concurrentManagedAccess, hipDeviceProp_t, concurrentManagedAccess);
SAME_FIELD(hipDeviceProp_tR0000, pageableMemoryAccess, hipDeviceProp_t, pageableMemoryAccess);
SAME_FIELD(hipDeviceProp_tR0000, pageableMemoryAccessUsesHostPageTables, hipDeviceProp_t,
           pageableMemoryAccessUsesHostPageTables);
#endif

}  // namespace
