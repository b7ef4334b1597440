// The program under test, with the agent preloaded. Its first argument selects how it calls the
// driver. It executes commands from standard input, one per line, and answers each with a line.
//
// It has its own realloc, which the agent uses for its tables: during a command that begins with
// "without-room" the tables cannot grow.

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "target.h"

extern "C" void* __libc_realloc(void* old, size_t size);

namespace {
thread_local bool has_no_room = false;
}

extern "C" void* realloc(void* old, size_t size) {
  return has_no_room ? nullptr : __libc_realloc(old, size);
}

namespace target {

std::vector<Piece> pieces;
CUcontext primary;
CUstream stream;
CUstream other_stream;
char line[256];
std::atomic<bool> calm{false};
std::atomic<uint64_t> rounds{0};
std::atomic<uint64_t> wrong{0};

CUstream Stream(uint64_t which) {
  return which == 0 ? stream : which == 1 ? other_stream : nullptr;
}

CUmemAllocationProp Properties(CUmemAllocationHandleType type) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  properties.requestedHandleTypes = type;
  return properties;
}

namespace {

std::vector<std::thread> threads;

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

// A call on a separate thread, concurrent with those of the main thread.
std::thread beside;
std::string beside_answer;

void DoBeside(std::string (*call)(uint64_t), uint64_t a) {
  beside = std::thread([=] {
    MUST(cuCtxSetCurrent(primary));
    beside_answer = call(a);
  });
}

std::atomic<bool> held{false};

void Hold(void*) {
  while (held.load()) usleep(1000);
}

void Sleep(void* milliseconds) {
  usleep(useconds_t(reinterpret_cast<uintptr_t>(milliseconds)) * 1000);
}

// Queries several attributes of an address at once and one by one: those that the agent answers,
// those that device memory does not have, and one that only the driver knows.
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

// Reserves a range with `count` adjacent handles, like an expandable segment.
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

// Returns the descriptor of softgpu's directory of the first device, or -1 if it is not open.
int DeviceFolder() {
  for (int fd = 0; fd < 4096; ++fd) {
    char target[64] = {};
    const std::string link = "/proc/self/fd/" + std::to_string(fd);
    if (readlink(link.c_str(), target, sizeof(target) - 1) > 0 &&
        (strcmp(target, "/softgpu/0") == 0 || strcmp(target, "/softgpu-hip/0") == 0)) {
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
  if (verb == "many") {  // pieces of one size, each with different words
    for (uint64_t i = 0; i < a; ++i) {
      Piece piece{0, b};
      MUST(cuMemAlloc_v2(&piece.address, b));
      Fill(piece, pieces.size() + 1);
      pieces.push_back(piece);
    }
    return "ok";
  }
  if (verb == "free-every") {  // every a-th piece
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
  if (verb == "beside-alloc") {
    DoBeside([](uint64_t bytes) { return Do("alloc", bytes, 0); }, a);
    return "ok";
  }
  if (verb == "beside-free") {
    DoBeside([](uint64_t piece) { return Do("free", piece, 0); }, a);
    return "ok";
  }
  if (verb == "beside-end") {
    beside.join();
    return beside_answer;
  }
  if (verb == "other-context") {
    CUcontext context = nullptr;
    MUST(cuCtxCreate_v2(&context, 0, 0));
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
    // A new context with memory that is never freed.
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
  if (verb == "slow") {  // for this many milliseconds
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
  if (verb == "try-capture") {
    return std::to_string(api.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
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
    // Maps files like the real driver, without MADV_DONTFORK.
    const int folder = DeviceFolder();
    const int file = openat(folder, ".", O_TMPFILE | O_RDWR, 0600);
    const bool mapped = file >= 0 && ftruncate(file, 4096) == 0 &&
                        mmap(nullptr, 4096, PROT_READ, MAP_SHARED, file, 0) != MAP_FAILED;
    pid_t child = fork();
    if (child == 0) {
      if (!mapped || DeviceFolder() >= 0 || HasMapped(" /softgpu")) _exit(4);
      // must be /dev/null by now
      if (fcntl(folder, F_GETFD) < 0 || write(file, "x", 1) != 1) _exit(5);
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
}  // namespace target

int main(int argc, char** argv) {
  using namespace target;  // NOLINT: this program consists of it
  if (argc < 2) return 2;
  setvbuf(stdout, nullptr, _IOLBF, 0);
  UseLookup(argv[1]);
  MUST(cuInit(0));
  MUST(cuDevicePrimaryCtxRetain(&primary, 0));
  MUST(cuCtxSetCurrent(primary));
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuStreamCreate(&other_stream, CU_STREAM_NON_BLOCKING));
  puts("READY");
  while (fgets(line, sizeof(line), stdin) != nullptr) {
    char verb[64] = {};
    unsigned long long a = 0, b = 0;
    constexpr char kWithoutRoom[] = "without-room ";
    const bool without_room = strncmp(line, kWithoutRoom, sizeof(kWithoutRoom) - 1) == 0;
    if (without_room)
      memmove(line, line + sizeof(kWithoutRoom) - 1, strlen(line) + 2 - sizeof(kWithoutRoom));
    if (sscanf(line, "%63s %llu %llu", verb, &a, &b) < 1) continue;
    has_no_room = without_room;
    const std::string answer = Do(verb, a, b);
    has_no_room = false;
    printf("%s\n", answer.c_str());
  }
  return 0;
}
