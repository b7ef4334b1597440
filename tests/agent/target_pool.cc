// Commands of target.cc for stream-ordered memory (cuMemAllocAsync) and its pools.
#include <chrono>

#include "target.h"

namespace target {
namespace {

CUmemoryPool CurrentPool() {
  CUmemoryPool pool = nullptr;
  MUST(cuDeviceGetMemPool(&pool, 0));
  return pool;
}

}  // namespace

std::string DoPool(const std::string& verb, uint64_t a, uint64_t b) {
  if (verb == "alloc") {  // bytes, stream
    Piece piece{0, a};
    if (CUresult r = api.cuMemAllocAsync(&piece.address, a, Stream(b))) {
      return "error " + std::to_string(r);
    }
    pieces.push_back(piece);
    return std::to_string(pieces.size() - 1);
  }
  if (verb == "free") return std::to_string(api.cuMemFreeAsync(pieces[a].address, Stream(b)));
  if (verb == "set") {  // piece, stream: fills the piece with the stream's number + 1
    return std::to_string(
        api.cuMemsetD8Async(pieces[a].address, uint8_t(b + 1), pieces[a].bytes, Stream(b)));
  }
  if (verb == "is") {  // piece, byte
    std::vector<uint8_t> found(pieces[a].bytes);
    MUST(cuMemcpyDtoH_v2(found.data(), pieces[a].address, found.size()));
    for (uint8_t byte : found) {
      if (byte != b) return "wrong";
    }
    return "right";
  }
  if (verb == "get" || verb == "put") {  // attribute, value
    uint64_t value = verb == "put" ? b : 0;
    CUresult r = verb == "put"
                     ? api.cuMemPoolSetAttribute(CurrentPool(), CUmemPool_attribute(a), &value)
                     : api.cuMemPoolGetAttribute(CurrentPool(), CUmemPool_attribute(a), &value);
    return r == CUDA_SUCCESS ? std::to_string(value) : "error " + std::to_string(r);
  }
  if (verb == "time") {  // count, bytes: measures the nanoseconds of an allocation and its free
    auto begin = std::chrono::steady_clock::now();
    for (uint64_t i = 0; i < a; ++i) {
      CUdeviceptr address = 0;
      MUST(cuMemAllocAsync(&address, b, stream));
      MUST(cuMemFreeAsync(address, stream));
    }
    auto span = std::chrono::steady_clock::now() - begin;
    MUST(cuStreamSynchronize(stream));
    return std::to_string(std::chrono::nanoseconds(span).count() / int64_t(a));
  }
  if (verb == "trim") return std::to_string(api.cuMemPoolTrimTo(CurrentPool(), a));
  if (verb == "own") {  // a pool with a maximum size in bytes, if not 0; becomes the current one
    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    properties.maxSize = a;
    CUmemoryPool pool = nullptr;
    MUST(cuMemPoolCreate(&pool, &properties));
    MUST(cuDeviceSetMemPool(0, pool));
    return "ok";
  }
  if (verb == "destroy") return std::to_string(api.cuMemPoolDestroy(CurrentPool()));
  if (verb == "access") {  // for the device, with these flags
    CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, int(a)}, CUmemAccess_flags(b)};
    return std::to_string(api.cuMemPoolSetAccess(CurrentPool(), &access, 1));
  }
  if (verb == "access-of") {
    CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, int(a)};
    CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    CUresult r = api.cuMemPoolGetAccess(&flags, CurrentPool(), &location);
    return std::to_string(r) + " " + std::to_string(int(flags));
  }
  if (verb == "pointer") {  // attributes of an address b bytes into piece a
    const CUdeviceptr at = pieces[a].address + b;
    CUcontext context = primary;
    CUmemoryPool pool = nullptr;
    CUdeviceptr base = 0;
    size_t size = 0;
    unsigned type = 0;
    int device = -1;
    uint64_t handles = 7;
    MUST(cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, at));
    MUST(cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, at));
    MUST(cuPointerGetAttribute(&base, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at));
    MUST(cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, at));
    MUST(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at));
    MUST(cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at));
    MUST(cuPointerGetAttribute(&handles, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, at));
    return std::string(context == nullptr ? "none " : "context ") +
           (pool == CurrentPool() ? "pool " : "other ") +
           (base == pieces[a].address ? "base " : "inside ") + std::to_string(size) + " " +
           std::to_string(type) + " " + std::to_string(device) + " " + std::to_string(handles);
  }
  return "unknown";
}

// Allocates and frees memory of the pool in one stream or across two, with different bytes each
// time.
void HammerPool(int number) {
  MUST(cuCtxSetCurrent(primary));
  CUstream mine[2] = {};
  MUST(cuStreamCreate(&mine[0], CU_STREAM_NON_BLOCKING));
  MUST(cuStreamCreate(&mine[1], 0));
  unsigned random = unsigned(number) * 2654435761u + 1;
  for (uint8_t round = 0; !calm.load(); ++round) {
    random = random * 1664525 + 1013904223;
    const size_t bytes = 1000 + (random >> 8) % (1 << 20);
    CUstream from = mine[random >> 30 & 1], to = mine[random >> 29 & 1];
    const auto value = uint8_t(round + number);
    std::vector<uint8_t> found(bytes);
    CUdeviceptr address = 0;
#ifndef TARGET_HIP
    // The thread's default stream, by functions that imply it.
    if (number % 4 == 0) {
      Must(cuMemAllocAsync_ptsz(&address, bytes, nullptr), "cuMemAllocAsync_ptsz");
      Must(cuMemsetD8Async_ptsz(address, value, bytes, nullptr), "cuMemsetD8Async_ptsz");
      Must(cuMemcpyDtoHAsync_v2_ptsz(found.data(), address, bytes, nullptr), "copy");
      Must(cuMemFreeAsync_ptsz(address, nullptr), "cuMemFreeAsync_ptsz");
      Must(cuStreamSynchronize_ptsz(nullptr), "cuStreamSynchronize_ptsz");
    } else
#endif
    {
      MUST(cuMemAllocAsync(&address, bytes, from));
      MUST(cuMemsetD8Async(address, value, bytes, from));
      if (from != to) MUST(cuStreamSynchronize(from));
      MUST(cuMemcpyDtoHAsync_v2(found.data(), address, bytes, to));
      MUST(cuMemFreeAsync(address, to));
      if (round % 4 == 0) {
        CUdeviceptr next = 0;  // replaces the other one, whose work may still be running
        MUST(cuMemAllocAsync(&next, bytes / 2, to));
        MUST(cuMemsetD8Async(next, uint8_t(~value), bytes / 2, to));
        MUST(cuMemFreeAsync(next, to));
      }
      MUST(cuStreamSynchronize(to));
    }
    for (uint8_t byte : found) {
      if (byte == value) continue;
      wrong.fetch_add(1);
      break;
    }
    rounds.fetch_add(1);
  }
}

}  // namespace target
