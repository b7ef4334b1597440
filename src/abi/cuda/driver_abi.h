// The binary interface of the CUDA driver API, limited to the parts used here: types and constants
// under their official names, so that no CUDA toolkit is needed to build. Values and layouts are
// those of cuda.h of CUDA 13.0; softgpu/abi_check.cc compares all of them if a toolkit is
// installed. Enumerations are in driver_enums.h, functions in driver_functions.def and
// driver_functions.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "abi/cuda/driver_enums.h"

namespace stasis::cuda {

// NOLINTBEGIN(readability-identifier-naming): CUDA's own names

using cuuint32_t = uint32_t;
using cuuint64_t = uint64_t;

using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUmemGenericAllocationHandle = unsigned long long;

using CUcontext = struct CUctx_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;
using CUlibrary = struct CUlib_st*;
using CUkernel = struct CUkern_st*;
using CUarray = struct CUarray_st*;
using CUevent = struct CUevent_st*;
using CUstream = struct CUstream_st*;
using CUgraph = struct CUgraph_st*;
using CUgraphNode = struct CUgraphNode_st*;
using CUgreenCtx = struct CUgreenCtx_st*;
using CUmemoryPool = struct CUmemPoolHandle_st*;

using CUhostFn = void (*)(void* user_data);
using CUstreamCallback = void (*)(CUstream stream, CUresult status, void* user_data);
using CUoccupancyB2DSize = size_t (*)(int block_size);

struct CUuuid {
  char bytes[16];
};
struct CUipcMemHandle {
  char reserved[64];
};
struct CUipcEventHandle {
  char reserved[64];
};

// Special stream handles: the legacy default stream and the calling thread's default stream.
inline const CUstream CU_STREAM_LEGACY = reinterpret_cast<CUstream>(1);
inline const CUstream CU_STREAM_PER_THREAD = reinterpret_cast<CUstream>(2);

inline constexpr CUdevice CU_DEVICE_CPU = -1;
inline constexpr CUdevice CU_DEVICE_INVALID = -2;

inline constexpr unsigned CU_MEMHOSTALLOC_PORTABLE = 1;
inline constexpr unsigned CU_MEMHOSTALLOC_DEVICEMAP = 2;
inline constexpr unsigned CU_MEMHOSTALLOC_WRITECOMBINED = 4;
inline constexpr unsigned CU_MEMHOSTREGISTER_PORTABLE = 1;
inline constexpr unsigned CU_MEMHOSTREGISTER_DEVICEMAP = 2;
inline constexpr unsigned CU_MEMHOSTREGISTER_IOMEMORY = 4;
inline constexpr unsigned CU_MEMHOSTREGISTER_READ_ONLY = 8;

// Sentinels in the `extra` array of cuLaunchKernel.
inline void* const CU_LAUNCH_PARAM_END = nullptr;
inline void* const CU_LAUNCH_PARAM_BUFFER_POINTER = reinterpret_cast<void*>(1);
inline void* const CU_LAUNCH_PARAM_BUFFER_SIZE = reinterpret_cast<void*>(2);

struct CUdevprop {
  int maxThreadsPerBlock;
  int maxThreadsDim[3];
  int maxGridSize[3];
  int sharedMemPerBlock;
  int totalConstantMemory;
  int SIMDWidth;
  int memPitch;
  int regsPerBlock;
  int clockRate;
  int textureAlign;
};

struct CUexecAffinityParam {
  CUexecAffinityType type;
  unsigned smCount;
};

struct CUctxCreateParams {
  CUexecAffinityParam* execAffinityParams;
  int numExecAffinityParams;
  void* cigParams;
};

struct CUDA_MEMCPY2D {
  size_t srcXInBytes;
  size_t srcY;
  CUmemorytype srcMemoryType;
  const void* srcHost;
  CUdeviceptr srcDevice;
  CUarray srcArray;
  size_t srcPitch;
  size_t dstXInBytes;
  size_t dstY;
  CUmemorytype dstMemoryType;
  void* dstHost;
  CUdeviceptr dstDevice;
  CUarray dstArray;
  size_t dstPitch;
  size_t WidthInBytes;
  size_t Height;
};

struct CUDA_MEMCPY3D {
  size_t srcXInBytes;
  size_t srcY;
  size_t srcZ;
  size_t srcLOD;
  CUmemorytype srcMemoryType;
  const void* srcHost;
  CUdeviceptr srcDevice;
  CUarray srcArray;
  void* reserved0;
  size_t srcPitch;
  size_t srcHeight;
  size_t dstXInBytes;
  size_t dstY;
  size_t dstZ;
  size_t dstLOD;
  CUmemorytype dstMemoryType;
  void* dstHost;
  CUdeviceptr dstDevice;
  CUarray dstArray;
  void* reserved1;
  size_t dstPitch;
  size_t dstHeight;
  size_t WidthInBytes;
  size_t Height;
  size_t Depth;
};

union CUlaunchAttributeValue {
  char pad[64];
  int cooperative;
  int priority;
  void* align;
};

struct CUlaunchAttribute {
  CUlaunchAttributeID id;
  char pad[8 - sizeof(CUlaunchAttributeID)];
  CUlaunchAttributeValue value;
};

struct CUlaunchConfig {
  unsigned int gridDimX;
  unsigned int gridDimY;
  unsigned int gridDimZ;
  unsigned int blockDimX;
  unsigned int blockDimY;
  unsigned int blockDimZ;
  unsigned int sharedMemBytes;
  CUstream hStream;
  CUlaunchAttribute* attrs;
  unsigned int numAttrs;
};

struct CUmemLocation {
  CUmemLocationType type;
  int id;
};

struct CUmemAllocationProp {
  CUmemAllocationType type;
  CUmemAllocationHandleType requestedHandleTypes;
  CUmemLocation location;
  void* win32HandleMetaData;
  struct {
    unsigned char compressionType;
    unsigned char gpuDirectRDMACapable;
    unsigned short usage;
    unsigned char reserved[4];
  } allocFlags;
};

struct CUmemAccessDesc {
  CUmemLocation location;
  CUmemAccess_flags flags;
};

struct CUmemPoolProps {
  CUmemAllocationType allocType;
  CUmemAllocationHandleType handleTypes;
  CUmemLocation location;
  void* win32SecurityAttributes;
  size_t maxSize;
  unsigned short usage;
  unsigned char reserved[54];
};

struct CUmemPoolPtrExportData {
  unsigned char reserved[64];
};

struct CUgraphEdgeData {
  unsigned char from_port;
  unsigned char to_port;
  unsigned char type;
  unsigned char reserved[5];
};

// Checkpoint API. All reserved bytes must be zero.
struct CUcheckpointLockArgs {
  unsigned int timeoutMs;  // 0: no timeout
  unsigned int reserved0;
  cuuint64_t reserved1[7];
};

struct CUcheckpointCheckpointArgs {
  cuuint64_t reserved[8];
};

struct CUcheckpointGpuPair {
  CUuuid oldUuid;
  CUuuid newUuid;
};

struct CUcheckpointRestoreArgs {
  CUcheckpointGpuPair* gpuPairs;  // all checkpointed GPUs, or none
  unsigned int gpuPairsCount;
  char reserved[52 - sizeof(CUcheckpointGpuPair*)];
  cuuint64_t reserved1;
};

struct CUcheckpointUnlockArgs {
  cuuint64_t reserved[8];
};

// NOLINTEND(readability-identifier-naming)

}  // namespace stasis::cuda
