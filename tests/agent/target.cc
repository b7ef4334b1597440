// A program that the agent rides in. It reaches the driver through the door that its first argument
// names, does what its standard input says, a line at a time, and answers each with a line.

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "device/cuda/driver_functions.h"

namespace {

using namespace stasis::cuda;  // NOLINT: what this program is made of

// symbol; the name and version by which cuGetProcAddress knows it
#define FUNCTIONS(X)                                                                  \
  X(cuInit, "cuInit")                                                                 \
  X(cuDeviceGetCount, "cuDeviceGetCount")                                             \
  X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain")                             \
  X(cuDevicePrimaryCtxReset_v2, "cuDevicePrimaryCtxReset")                            \
  X(cuCtxCreate_v2, "cuCtxCreate")                                                    \
  X(cuCtxDestroy_v2, "cuCtxDestroy")                                                  \
  X(cuCtxSetCurrent, "cuCtxSetCurrent")                                               \
  X(cuCtxSynchronize, "cuCtxSynchronize")                                             \
  X(cuCtxGetLimit, "cuCtxGetLimit")                                                   \
  X(cuCtxSetLimit, "cuCtxSetLimit")                                                   \
  X(cuMemAlloc_v2, "cuMemAlloc")                                                      \
  X(cuMemFree_v2, "cuMemFree")                                                        \
  X(cuMemGetInfo_v2, "cuMemGetInfo")                                                  \
  X(cuMemGetAddressRange_v2, "cuMemGetAddressRange")                                  \
  X(cuPointerGetAttribute, "cuPointerGetAttribute")                                   \
  X(cuPointerGetAttributes, "cuPointerGetAttributes")                                 \
  X(cuMemcpyHtoD_v2, "cuMemcpyHtoD")                                                  \
  X(cuMemcpyDtoH_v2, "cuMemcpyDtoH")                                                  \
  X(cuMemsetD8_v2, "cuMemsetD8")                                                      \
  X(cuStreamCreate, "cuStreamCreate")                                                 \
  X(cuStreamSynchronize, "cuStreamSynchronize")                                       \
  X(cuLaunchHostFunc, "cuLaunchHostFunc")                                             \
  X(cuStreamBeginCapture_v2, "cuStreamBeginCapture")                                  \
  X(cuStreamEndCapture, "cuStreamEndCapture")                                         \
  X(cuIpcGetMemHandle, "cuIpcGetMemHandle")                                           \
  X(cuIpcOpenMemHandle_v2, "cuIpcOpenMemHandle")                                      \
  X(cuIpcCloseMemHandle, "cuIpcCloseMemHandle")                                       \
  X(cuIpcGetEventHandle, "cuIpcGetEventHandle")                                       \
  X(cuIpcOpenEventHandle, "cuIpcOpenEventHandle")                                     \
  X(cuEventCreate, "cuEventCreate")                                                   \
  X(cuEventDestroy_v2, "cuEventDestroy")                                              \
  X(cuEventRecord, "cuEventRecord")                                                   \
  X(cuEventQuery, "cuEventQuery")                                                     \
  X(cuEventSynchronize, "cuEventSynchronize")                                         \
  X(cuStreamWaitEvent, "cuStreamWaitEvent")                                           \
  X(cuMemsetD8Async, "cuMemsetD8Async")                                               \
  X(cuMemcpyDtoHAsync_v2, "cuMemcpyDtoHAsync")                                        \
  X(cuMemAllocAsync, "cuMemAllocAsync")                                               \
  X(cuMemFreeAsync, "cuMemFreeAsync")                                                 \
  X(cuMemPoolCreate, "cuMemPoolCreate")                                               \
  X(cuMemPoolDestroy, "cuMemPoolDestroy")                                             \
  X(cuMemPoolTrimTo, "cuMemPoolTrimTo")                                               \
  X(cuMemPoolSetAttribute, "cuMemPoolSetAttribute")                                   \
  X(cuMemPoolGetAttribute, "cuMemPoolGetAttribute")                                   \
  X(cuMemPoolSetAccess, "cuMemPoolSetAccess")                                         \
  X(cuMemPoolGetAccess, "cuMemPoolGetAccess")                                         \
  X(cuDeviceGetMemPool, "cuDeviceGetMemPool")                                         \
  X(cuDeviceSetMemPool, "cuDeviceSetMemPool")                                         \
  X(cuMemAddressReserve, "cuMemAddressReserve")                                       \
  X(cuMemCreate, "cuMemCreate")                                                       \
  X(cuMemMap, "cuMemMap")                                                             \
  X(cuMemUnmap, "cuMemUnmap")                                                         \
  X(cuMemRelease, "cuMemRelease")                                                     \
  X(cuMemSetAccess, "cuMemSetAccess")                                                 \
  X(cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle")                       \
  X(cuMemGetAllocationPropertiesFromHandle, "cuMemGetAllocationPropertiesFromHandle") \
  X(cuMemExportToShareableHandle, "cuMemExportToShareableHandle")                     \
  X(cuMemImportFromShareableHandle, "cuMemImportFromShareableHandle")

struct Api {
#define FIELD(symbol, name) decltype(&::stasis::cuda::symbol) symbol = nullptr;
  FUNCTIONS(FIELD)
#undef FIELD
} api;

[[noreturn]] void Die(const char* what, int code) {
  printf("FAILED %s %d\n", what, code);
  fflush(stdout);
  _exit(1);
}

void Must(CUresult r, const char* what) {
  if (r != CUDA_SUCCESS) Die(what, r);
}
#define MUST(call) Must(api.call, #call)

using Runtime = int (*)(const char*, void**, unsigned, unsigned long long, unsigned*);

void ThroughDoor(const std::string& door) {
  if (door == "direct") {
#define DIRECT(symbol, name) api.symbol = &::stasis::cuda::symbol;
    FUNCTIONS(DIRECT)
    return;
  }
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) Die(dlerror(), 0);
  auto* ask = reinterpret_cast<fn::cuGetProcAddress_v2*>(dlsym(driver, "cuGetProcAddress_v2"));
  Runtime runtime = nullptr;
  if (door == "cudart") {
    void* cudart = dlopen(getenv("SOFTGPU_CUDART"), RTLD_NOW | RTLD_LOCAL);
    if (cudart == nullptr) Die(dlerror(), 0);
    runtime = reinterpret_cast<Runtime>(dlsym(cudart, "cudaGetDriverEntryPointByVersion"));
  }
  auto find = [&](const char* symbol, const char* name) {
    void* address = nullptr;
    CUdriverProcAddressQueryResult status{};
    unsigned found = 0;
    // Version 12000: the one that has a cuCtxCreate without parameters.
    if (door == "dlsym") address = dlsym(driver, symbol);
    if (door == "lookup") ask(name, &address, 11080, 0, &status);
    if (door == "cudart") runtime(name, &address, 11080, 0, &found);
    if (strcmp(symbol, "cuCtxCreate_v2") == 0) address = dlsym(driver, symbol);
    if (address == nullptr) Die(symbol, 0);
    return address;
  };
#define FIND(symbol, name) api.symbol = reinterpret_cast<decltype(api.symbol)>(find(#symbol, name));
  FUNCTIONS(FIND)
}

struct Piece {
  CUdeviceptr address;
  size_t bytes;
};
std::vector<Piece> pieces;
CUcontext primary;

std::vector<uint64_t> Pattern(size_t bytes, uint64_t seed) {
  std::vector<uint64_t> words(bytes / 8);
  for (uint64_t& word : words) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    word = seed;
  }
  return words;
}

void Fill(const Piece& piece, uint64_t seed) {
  MUST(cuMemcpyHtoD_v2(piece.address, Pattern(piece.bytes, seed).data(), piece.bytes / 8 * 8));
}

bool Check(const Piece& piece, uint64_t seed) {
  std::vector<uint64_t> found(piece.bytes / 8);
  MUST(cuMemcpyDtoH_v2(found.data(), piece.address, piece.bytes / 8 * 8));
  return found == Pattern(piece.bytes, seed);
}

std::atomic<bool> calm{false};
std::atomic<uint64_t> rounds{0};
std::atomic<uint64_t> wrong{0};
std::vector<std::thread> threads;

void Hammer(int number) {
  MUST(cuCtxSetCurrent(primary));
  uint64_t seed = 77 + uint64_t(number);
  Piece mine{0, 4096};
  MUST(cuMemAlloc_v2(&mine.address, mine.bytes));
  Fill(mine, seed);
  while (!calm.load()) {
    if (!Check(mine, seed)) wrong.fetch_add(1);
    Fill(mine, ++seed);
    Piece other{0, size_t(1 + number % 3) << 20};
    MUST(cuMemAlloc_v2(&other.address, other.bytes));
    MUST(cuMemsetD8_v2(other.address, 7, other.bytes));
    MUST(cuMemFree_v2(other.address));
    rounds.fetch_add(1);
  }
  if (!Check(mine, seed)) wrong.fetch_add(1);
  MUST(cuMemFree_v2(mine.address));
}

std::atomic<bool> held{false};
CUstream stream;

void Hold(void*) {
  while (held.load()) usleep(1000);
}

void Sleep(void* milliseconds) {
  usleep(useconds_t(reinterpret_cast<uintptr_t>(milliseconds)) * 1000);
}

CUstream other_stream;

CUstream Stream(uint64_t which) {
  return which == 0 ? stream : which == 1 ? other_stream : nullptr;
}

CUmemoryPool CurrentPool() {
  CUmemoryPool pool = nullptr;
  MUST(cuDeviceGetMemPool(&pool, 0));
  return pool;
}

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
  if (verb == "set") {  // piece, stream: the whole of it to the stream's number + 1
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
  if (verb == "time") {  // so many times so many bytes: nanoseconds for an allocation and its free
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
  if (verb == "own") {  // of at most so many bytes, if not 0; from now on the current one
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
  if (verb == "access") {  // to the device, of these flags
    CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, int(a)}, CUmemAccess_flags(b)};
    return std::to_string(api.cuMemPoolSetAccess(CurrentPool(), &access, 1));
  }
  if (verb == "access-of") {
    CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, int(a)};
    CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    CUresult r = api.cuMemPoolGetAccess(&flags, CurrentPool(), &location);
    return std::to_string(r) + " " + std::to_string(int(flags));
  }
  if (verb == "pointer") {  // what may be asked about piece a, b bytes in
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

// Several attributes of an address at once, beside each by itself: those that the agent answers,
// those that a device's memory does not have, and last one that only the driver knows.
std::string AtOnce(CUdeviceptr at) {
  CUpointer_attribute wanted[] = {
      CU_POINTER_ATTRIBUTE_CONTEXT,        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
      CU_POINTER_ATTRIBUTE_DEVICE_POINTER, CU_POINTER_ATTRIBUTE_BUFFER_ID,
      CU_POINTER_ATTRIBUTE_IS_MANAGED,     CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
      CU_POINTER_ATTRIBUTE_RANGE_SIZE,     CU_POINTER_ATTRIBUTE_HOST_POINTER,
      CU_POINTER_ATTRIBUTE_SYNC_MEMOPS};
  constexpr unsigned kCount = std::size(wanted);
  for (unsigned count : {kCount - 1, kCount}) {
    uint64_t together[kCount], alone[kCount];
    void* places[kCount];
    for (unsigned i = 0; i < kCount; ++i) {
      together[i] = alone[i] = 0x5a5a5a5a5a5a5a5a;
      places[i] = &together[i];
    }
    MUST(cuPointerGetAttributes(count, wanted, places, at));
    for (unsigned i = 0; i < count; ++i) {
      if (api.cuPointerGetAttribute(&alone[i], wanted[i], at) != CUDA_SUCCESS) alone[i] = 0;
      if (together[i] != alone[i]) return "attribute " + std::to_string(wanted[i]) + " differs";
    }
  }
  if (api.cuPointerGetAttributes(0, wanted, nullptr, at) != CUDA_ERROR_INVALID_VALUE) {
    return "a wrong request is not refused";
  }
  return "same";
}

char line[256];

// The bytes of a handle as digits, and back: the second word of the line.
template <class T>
std::string Hex(const T& handle) {
  std::string text;
  char pair[3];
  for (char byte : handle.reserved) {
    snprintf(pair, sizeof(pair), "%02x", uint8_t(byte));
    text += pair;
  }
  return text;
}
template <class T>
T Unhex() {
  T handle{};
  const char* at = strchr(line, ' ');
  for (char& byte : handle.reserved) {
    unsigned value = 0;
    if (at == nullptr || sscanf(++at, "%2x", &value) != 1) Die("no handle", 0);
    byte = char(value);
    ++at;
  }
  return handle;
}

std::vector<CUevent> events;

std::string DoIpc(const std::string& verb, uint64_t a, uint64_t b) {
  if (verb == "get") {  // of piece a, b bytes in
    CUipcMemHandle handle;
    CUresult r = api.cuIpcGetMemHandle(&handle, pieces[a].address + b);
    return r == CUDA_SUCCESS ? Hex(handle) : "error " + std::to_string(r);
  }
  if (verb == "open") {
    Piece piece{};
    CUresult r = api.cuIpcOpenMemHandle_v2(&piece.address, Unhex<CUipcMemHandle>(),
                                           CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (r != CUDA_SUCCESS) return "error " + std::to_string(r);
    MUST(cuMemGetAddressRange_v2(nullptr, &piece.bytes, piece.address));
    pieces.push_back(piece);
    return std::to_string(pieces.size() - 1);
  }
  if (verb == "close") return std::to_string(api.cuIpcCloseMemHandle(pieces[a].address));
  if (verb == "capable") {
    unsigned capable = 7;
    MUST(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                               pieces[a].address));
    return std::to_string(capable);
  }
  CUevent event = nullptr;
  if (verb == "share-event") {
    CUipcEventHandle handle;
    MUST(cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    MUST(cuIpcGetEventHandle(&handle, event));
    events.push_back(event);
    return Hex(handle);
  }
  if (verb == "open-event") {
    if (CUresult r = api.cuIpcOpenEventHandle(&event, Unhex<CUipcEventHandle>())) {
      return "error " + std::to_string(r);
    }
    events.push_back(event);
    return "ok";
  }
  if (verb == "record") return std::to_string(api.cuEventRecord(events[a], stream));
  if (verb == "query") return std::to_string(api.cuEventQuery(events[a]));
  if (verb == "sync") return std::to_string(api.cuEventSynchronize(events[a]));
  if (verb == "wait") {
    MUST(cuStreamWaitEvent(stream, events[a], 0));
    return std::to_string(api.cuStreamSynchronize(stream));
  }
  if (verb == "end-event") {
    MUST(cuEventDestroy_v2(events[a]));
    return "ok";
  }
  return "unknown";
}

CUmemAllocationProp Properties(CUmemAllocationHandleType type) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  properties.requestedHandleTypes = type;
  return properties;
}

std::vector<CUmemGenericAllocationHandle> handles;

std::string Kept(CUresult r, CUmemGenericAllocationHandle handle) {
  if (r != CUDA_SUCCESS) return "error " + std::to_string(r);
  handles.push_back(handle);
  return std::to_string(handles.size() - 1);
}

// A copy of a sealed file, with one byte changed.
int Spoiled(int fd, uint64_t at) {
  char bytes[64];
  if (pread(fd, bytes, sizeof(bytes), 0) != ssize_t(sizeof(bytes))) Die("pread", errno);
  bytes[at % sizeof(bytes)] ^= 1;
  const int copy = memfd_create("spoiled", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (write(copy, bytes, sizeof(bytes)) != ssize_t(sizeof(bytes)) ||
      fcntl(copy, F_ADD_SEALS, fcntl(fd, F_GET_SEALS)) != 0) {
    Die("memfd", errno);
  }
  return copy;
}

// A copy in a file of a disk (of the current folder), which cannot be sealed.
int Copied(int fd) {
  char bytes[64], name[] = "copied-XXXXXX";
  const int copy = mkstemp(name);
  if (copy < 0 || unlink(name) != 0) Die("mkstemp", errno);
  if (pread(fd, bytes, sizeof(bytes), 0) != ssize_t(sizeof(bytes)) ||
      write(copy, bytes, sizeof(bytes)) != ssize_t(sizeof(bytes))) {
    Die("copy", errno);
  }
  return copy;
}

// Handles of the program's own, shared as files.
std::string DoHandle(const std::string& verb, uint64_t a, uint64_t b) {
  constexpr auto kFile = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle handle = 0;
  if (verb == "make") {  // of so many bytes; 1: of no type that can be exported
    CUmemAllocationProp properties = Properties(b == 0 ? kFile : CU_MEM_HANDLE_TYPE_NONE);
    CUresult r = api.cuMemCreate(&handle, a, &properties, 0);
    return Kept(r, handle);
  }
  if (verb == "map") {  // of so many bytes
    Piece piece{0, b};
    CUmemAccessDesc access{Properties(kFile).location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    MUST(cuMemAddressReserve(&piece.address, b, 0, 0, 0));
    if (CUresult r = api.cuMemMap(piece.address, b, 0, handles[a], 0)) {
      return "error " + std::to_string(r);
    }
    MUST(cuMemSetAccess(piece.address, b, &access, 1));
    pieces.push_back(piece);
    return std::to_string(pieces.size() - 1);
  }
  if (verb == "unmap") return std::to_string(api.cuMemUnmap(pieces[a].address, pieces[a].bytes));
  if (verb == "release") return std::to_string(api.cuMemRelease(handles[a]));
  if (verb == "retain") {
    CUresult r =
        api.cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(pieces[a].address));
    return Kept(r, handle);
  }
  if (verb == "about") {
    CUmemAllocationProp found{};
    if (CUresult r = api.cuMemGetAllocationPropertiesFromHandle(&found, handles[a])) {
      return "error " + std::to_string(r);
    }
    return std::to_string(found.type) + " " + std::to_string(found.location.type) + " " +
           std::to_string(found.location.id) + " " + std::to_string(found.requestedHandleTypes);
  }
  if (verb == "export") {
    int fd = -1;
    CUresult r = api.cuMemExportToShareableHandle(&fd, handles[a], kFile, 0);
    return r == CUDA_SUCCESS ? std::to_string(fd) : "error " + std::to_string(r);
  }
  if (verb == "import") {  // the file that process a has open as b, as if it had been sent
    const int process = int(syscall(SYS_pidfd_open, a, 0));
    const int fd = int(syscall(438 /* pidfd_getfd */, process, int(b), 0));
    CUresult r =
        api.cuMemImportFromShareableHandle(&handle, reinterpret_cast<void*>(intptr_t(fd)), kFile);
    if (fd >= 0) close(fd);
    close(process);
    return Kept(r, handle);
  }
  if (verb == "spoil") return std::to_string(Spoiled(int(a), b));
  if (verb == "copy") return std::to_string(Copied(int(a)));
  if (verb == "close") return std::to_string(close(int(a)));
  return "unknown";
}

// Memory from the pool, in one stream or from one to another, each time with bytes of its own.
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
    if (number % 4 == 0) {
      // The thread's own default stream, by the functions that mean it.
      Must(cuMemAllocAsync_ptsz(&address, bytes, nullptr), "cuMemAllocAsync_ptsz");
      Must(cuMemsetD8Async_ptsz(address, value, bytes, nullptr), "cuMemsetD8Async_ptsz");
      Must(cuMemcpyDtoHAsync_v2_ptsz(found.data(), address, bytes, nullptr), "copy");
      Must(cuMemFreeAsync_ptsz(address, nullptr), "cuMemFreeAsync_ptsz");
      Must(cuStreamSynchronize_ptsz(nullptr), "cuStreamSynchronize_ptsz");
    } else {
      MUST(cuMemAllocAsync(&address, bytes, from));
      MUST(cuMemsetD8Async(address, value, bytes, from));
      if (from != to) MUST(cuStreamSynchronize(from));
      MUST(cuMemcpyDtoHAsync_v2(found.data(), address, bytes, to));
      MUST(cuMemFreeAsync(address, to));
      if (round % 4 == 0) {
        CUdeviceptr next = 0;  // takes the place of the other while its work may still be running
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

// A range of the program's own: `count` handles side by side, as an expandable segment has them.
std::string Vmm(size_t bytes, int count, bool keep_handles) {
  CUdeviceptr base = 0;
  MUST(cuMemAddressReserve(&base, bytes * size_t(count), 0, 0, 0));
  CUmemAllocationProp properties = Properties(CU_MEM_HANDLE_TYPE_NONE);
  for (int i = 0; i < count; ++i) {
    CUmemGenericAllocationHandle handle = 0;
    MUST(cuMemCreate(&handle, bytes, &properties, 0));
    MUST(cuMemMap(base + bytes * size_t(i), bytes, 0, handle, 0));
    if (!keep_handles) MUST(cuMemRelease(handle));
  }
  CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  MUST(cuMemSetAccess(base, bytes * size_t(count), &access, 1));
  pieces.push_back({base, bytes * size_t(count)});
  return std::to_string(pieces.size() - 1);
}

// softgpu's folder of its first device, which it holds open; -1: it is not.
int DeviceFolder() {
  for (int fd = 0; fd < 4096; ++fd) {
    char target[64] = {};
    const std::string link = "/proc/self/fd/" + std::to_string(fd);
    if (readlink(link.c_str(), target, sizeof(target) - 1) > 0 &&
        strcmp(target, "/softgpu/0") == 0) {
      return fd;
    }
  }
  return -1;
}

bool HasMapped(const char* text) {
  FILE* maps = fopen("/proc/self/maps", "r");
  bool found = maps == nullptr;
  for (char line[512]; !found && fgets(line, sizeof(line), maps) != nullptr;) {
    found = strstr(line, text) != nullptr;
  }
  if (maps != nullptr) fclose(maps);
  return found;
}

int HighDescriptors() {
  int count = 0;
  for (int fd = 256; fd < 20000; ++fd) count += fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
  return count;
}

std::string Do(const std::string& verb, uint64_t a, uint64_t b) {
  if (verb == "alloc") {
    Piece piece{0, a};
    if (CUresult r = api.cuMemAlloc_v2(&piece.address, a)) return "error " + std::to_string(r);
    pieces.push_back(piece);
    return std::to_string(pieces.size() - 1);
  }
  if (verb == "many") {  // pieces of one size, each with words of its own
    for (uint64_t i = 0; i < a; ++i) {
      Piece piece{0, b};
      MUST(cuMemAlloc_v2(&piece.address, b));
      Fill(piece, pieces.size() + 1);
      pieces.push_back(piece);
    }
    return "ok";
  }
  if (verb == "free-every") {  // each a-th of them
    for (size_t i = 0; i < pieces.size(); i += a) {
      MUST(cuMemFree_v2(pieces[i].address));
      pieces[i].bytes = 0;
    }
    return "ok";
  }
  if (verb == "check-many") {
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (pieces[i].bytes != 0 && !Check(pieces[i], i + 1)) return "wrong " + std::to_string(i);
    }
    return "right";
  }
  if (verb == "free") return std::to_string(api.cuMemFree_v2(pieces[a].address));
  if (verb == "fill") {
    Fill(pieces[a], b);
    return "ok";
  }
  if (verb == "check") return Check(pieces[a], b) ? "right" : "wrong";
  if (verb == "address") return std::to_string(pieces[a].address);
  if (verb == "range") {
    CUdeviceptr base = 0;
    size_t size = 0;
    MUST(cuMemGetAddressRange_v2(&base, &size, pieces[a].address + b));
    return std::to_string(base - pieces[a].address) + " " + std::to_string(size);
  }
  if (verb == "buffer") {
    uint64_t id = 0;
    MUST(cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, pieces[a].address + b));
    return std::to_string(id);
  }
  if (verb == "attributes") return AtOnce(pieces[a].address + b);
  if (verb == "context") {
    CUcontext context = nullptr;
    MUST(cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, pieces[a].address));
    return context == primary ? "primary" : "other";
  }
  if (verb == "memory") {
    size_t free = 0, total = 0;
    MUST(cuMemGetInfo_v2(&free, &total));
    return std::to_string(free);
  }
  if (verb == "limit") {
    size_t value = 0;
    MUST(cuCtxGetLimit(&value, CU_LIMIT_STACK_SIZE));
    return std::to_string(value);
  }
  if (verb == "set-limit") return std::to_string(api.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, a));
  if (verb.starts_with("ipc-")) return DoIpc(verb.substr(4), a, b);
  if (verb.starts_with("handle-")) return DoHandle(verb.substr(7), a, b);
  if (verb.starts_with("pool-")) return DoPool(verb.substr(5), a, b);
  if (verb == "sync") return std::to_string(api.cuStreamSynchronize(Stream(a)));
  if (verb == "sync-context") return std::to_string(api.cuCtxSynchronize());
  if (verb == "vmm-jax") {
    CUmemAllocationProp properties = Properties(CUmemAllocationHandleType(
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC));
    properties.allocFlags.gpuDirectRDMACapable = 1;
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr base = 0;
    MUST(cuMemCreate(&handle, a, &properties, 0));
    MUST(cuMemAddressReserve(&base, a, 2 << 20, 0, 0));
    MUST(cuMemMap(base, a, 0, handle, 0));
    CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    MUST(cuMemSetAccess(base, a, &access, 1));
    pieces.push_back({base, a});
    return std::to_string(pieces.size() - 1);
  }
  if (verb == "vmm") return Vmm(a, int(b), true);
  if (verb == "vmm-released") return Vmm(a, int(b), false);
  if (verb == "reset") {
    pieces.clear();
    MUST(cuDevicePrimaryCtxReset_v2(0));
    MUST(cuDevicePrimaryCtxRetain(&primary, 0));
    MUST(cuCtxSetCurrent(primary));
    return "ok";
  }
  if (verb == "scratch-context") {
    // A context of its own, with memory that nobody frees.
    CUcontext context = nullptr;
    CUdeviceptr address = 0;
    MUST(cuCtxCreate_v2(&context, 0, 0));
    MUST(cuMemAlloc_v2(&address, a));
    MUST(cuCtxDestroy_v2(context));
    MUST(cuCtxSetCurrent(primary));
    return "ok";
  }
  if (verb == "stuck") {
    held.store(true);
    MUST(cuLaunchHostFunc(stream, Hold, nullptr));
    return "ok";
  }
  if (verb == "slow") {  // for so many milliseconds
    MUST(cuLaunchHostFunc(stream, Sleep, reinterpret_cast<void*>(a)));
    return "ok";
  }
  if (verb == "unstuck") {
    held.store(false);
    MUST(cuStreamSynchronize(stream));
    return "ok";
  }
  if (verb == "capture") {
    MUST(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    return "ok";
  }
  if (verb == "end-capture") {
    CUgraph graph = nullptr;
    return std::to_string(api.cuStreamEndCapture(stream, &graph));
  }
  if (verb == "hammer") {
    for (uint64_t i = 0; i < a; ++i) threads.emplace_back(Hammer, int(i));
    return "ok";
  }
  if (verb == "hammer-pool") {
    for (uint64_t i = 0; i < a; ++i) threads.emplace_back(HammerPool, int(i));
    return "ok";
  }
  if (verb == "rounds") return std::to_string(rounds.load());
  if (verb == "calm") {
    calm.store(true);
    for (std::thread& thread : threads) thread.join();
    threads.clear();
    return "wrong " + std::to_string(wrong.load());
  }
  if (verb == "close-descriptors") {
    for (int fd = 256; fd < 20000; ++fd) close(fd);
    return "ok";
  }
  if (verb == "high-descriptors") return std::to_string(HighDescriptors());
  if (verb == "fork") {
    // As the real driver maps its files: without MADV_DONTFORK.
    const int folder = DeviceFolder();
    const int file = openat(folder, ".", O_TMPFILE | O_RDWR, 0600);
    const bool mapped = file >= 0 && ftruncate(file, 4096) == 0 &&
                        mmap(nullptr, 4096, PROT_READ, MAP_SHARED, file, 0) != MAP_FAILED;
    pid_t child = fork();
    if (child == 0) {
      if (!mapped || DeviceFolder() >= 0 || HasMapped(" /softgpu/")) _exit(4);
      if (fcntl(folder, F_GETFD) < 0 || write(file, "x", 1) != 1) _exit(5);  // /dev/null by now
      CUdeviceptr address = 0;
      bool refused = api.cuMemAlloc_v2(&address, 1 << 20) != CUDA_SUCCESS;
      _exit(HighDescriptors() != 0 ? 2 : refused ? 0 : 3);
    }
    int status = 0;
    waitpid(child, &status, 0);
    close(file);
    return std::to_string(WEXITSTATUS(status));
  }
  return "unknown";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  setvbuf(stdout, nullptr, _IOLBF, 0);
  ThroughDoor(argv[1]);
  MUST(cuInit(0));
  MUST(cuDevicePrimaryCtxRetain(&primary, 0));
  MUST(cuCtxSetCurrent(primary));
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuStreamCreate(&other_stream, CU_STREAM_NON_BLOCKING));
  puts("READY");
  while (fgets(line, sizeof(line), stdin) != nullptr) {
    char verb[64] = {};
    unsigned long long a = 0, b = 0;
    if (sscanf(line, "%63s %llu %llu", verb, &a, &b) < 1) continue;
    printf("%s\n", Do(verb, a, b).c_str());
  }
  return 0;
}
