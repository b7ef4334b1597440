// Queries about the program's memory, answered as the driver would answer for cuMemAlloc memory,
// not for the handles behind it. The agent's own answers are also valid while the memory is away.
// Queries that the driver answers wait at a sealed gate, because the driver has no record of
// unmapped memory.

#include <string.h>

#include "agent/cuda/pools.h"
#include "agent/gate.h"
#include "agent/hip/process.h"

namespace stasis::agent {
namespace {

enum class Answer { kMine, kDrivers, kInvalid };

template <class T>
Answer Give(void* data, T value) {
  memcpy(data, &value, sizeof(value));
  return Answer::kMine;
}

// Answers a query about memory of the agent. The caller holds g_memory_mutex.
Answer Tell(const Found& found, void* data, CUpointer_attribute attribute, CUdeviceptr ptr) {
  const Region& region = *found.region;
  const CUdeviceptr base = region.address + found.block->offset;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      if (IsHip()) return Answer::kDrivers;  // the agent's contexts are not HIP's
      return Give(data, region.context);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return Give(data, unsigned(CU_MEMORYTYPE_DEVICE));
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return Give(data, ptr);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      return Answer::kInvalid;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return Give(data, found.block->id);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return Give(data, 0u);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:  // by the agent (ipc.h)
      return Give(data, region.pool == nullptr && region.import == nullptr ? 1u : 0u);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return Give(data, int(region.device));
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return Give(data, base);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      return Give(data, size_t(found.block->bytes));
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return Give(data, 1u);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return Give(data, uint64_t(0));
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return Give(data, unsigned(CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return Give(data, region.pool != nullptr ? region.pool->handle : nullptr);
    default:
      return Answer::kDrivers;
  }
}

Answer Ask(void* data, CUpointer_attribute attribute, CUdeviceptr ptr) {
  Lock lock(g_memory_mutex);
  Found found = FindAllocation(ptr);
  return found.block == nullptr ? Answer::kDrivers : Tell(found, data, attribute, ptr);
}

enum class Answers { kNotOurs, kAll, kSome };

// Attributes without a meaning for device memory are zero.
Answers AskAll(unsigned count, const CUpointer_attribute* attributes, void** data,
               CUdeviceptr ptr) {
  Lock lock(g_memory_mutex);
  Found found = FindAllocation(ptr);
  if (found.block == nullptr) return Answers::kNotOurs;
  Answers answers = Answers::kAll;
  for (unsigned i = 0; i < count; ++i) {
    const Answer answer =
        data[i] == nullptr ? Answer::kDrivers : Tell(found, data[i], attributes[i], ptr);
    if (answer == Answer::kDrivers) answers = Answers::kSome;
    if (answer == Answer::kInvalid) memset(data[i], 0, sizeof(void*));
  }
  return answers;
}

bool IsOurs(CUdeviceptr ptr) {
  Lock lock(g_memory_mutex);
  return FindAllocation(ptr).block != nullptr;
}

}  // namespace

STASIS_EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* size, CUdeviceptr ptr) {
  {
    Lock lock(g_memory_mutex);
    Found found = FindAllocation(ptr);
    if (found.block != nullptr) {
      if (base != nullptr) *base = found.region->address + found.block->offset;
      if (size != nullptr) *size = found.block->bytes;
      return CUDA_SUCCESS;
    }
  }
  gate::Ask asking;
  return real::cuMemGetAddressRange_v2(base, size, ptr);
}

STASIS_EXPORT CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location,
                                      CUdeviceptr ptr) {
  gate::Ask asking;
  return real::cuMemGetAccess(flags, location, ptr);
}

STASIS_EXPORT CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute,
                                             CUdeviceptr ptr) {
  if (data != nullptr) {
    Answer answer = Ask(data, attribute, ptr);
    if (answer == Answer::kMine) return CUDA_SUCCESS;
    if (answer == Answer::kInvalid) return CUDA_ERROR_INVALID_VALUE;
  }
  gate::Ask asking;
  return real::cuPointerGetAttribute(data, attribute, ptr);
}

STASIS_EXPORT CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes,
                                              void** data, CUdeviceptr ptr) {
  const bool sound = count > 0 && attributes != nullptr && data != nullptr;
  if (sound && AskAll(count, attributes, data, ptr) == Answers::kAll) return CUDA_SUCCESS;
  // The driver checks the request and fills in all attributes; then the agent overwrites those that
  // it can answer.
  gate::Ask asking;
  CUresult r = real::cuPointerGetAttributes(count, attributes, data, ptr);
  if (r == CUDA_SUCCESS && sound) (void)AskAll(count, attributes, data, ptr);
  return r;
}

namespace hook {

CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute attribute, CUdeviceptr ptr) {
  CUresult r = real::cuPointerSetAttribute(value, attribute, ptr);
  // Not every driver supports this attribute for memory from handles. Copies within one process are
  // ordered in any case.
  if (r != CUDA_SUCCESS && attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS && value != nullptr &&
      IsOurs(ptr)) {
    return CUDA_SUCCESS;
  }
  return r;
}

}  // namespace hook
}  // namespace stasis::agent
