// The program of the conformance kit for AMD GPUs (`stasis check --gpu amd`). It links no library
// of HIP, loads the one of the machine, and launches no kernels, so that it needs nothing but the
// runtime.
//
//   hip_probe describe     prints the library, its versions and the GPUs
//   hip_probe fact NAME    checks one property of HIP that Stasis relies on; prints a sentence;
//   exit
//                          code 0, 1 (wrong), or 77 (cannot be checked here)
//   hip_probe [OPTIONS]    a workload (common/protocol.h) with memory of several kinds, all of
//   which
//                          it compares with the expected contents in every round
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "abi/hip/as_driver.h"
#include "common/arithmetic.h"
#include "common/protocol.h"

extern char** environ;

namespace workloads {
namespace {

using namespace stasis::hip;  // NOLINT: every name in it begins with cu, CU, hip or HIP

constexpr int kOk = 0, kWrong = 1, kCannotTell = 77;
constexpr uint64_t kMiB = 1u << 20;

#define PROBE_FUNCTIONS(F)           \
  F(hipGetDeviceCount)               \
  F(hipSetDevice)                    \
  F(hipDriverGetVersion)             \
  F(hipRuntimeGetVersion)            \
  F(hipDeviceGetName)                \
  F(hipDeviceGetUuid)                \
  F(hipDeviceGetPCIBusId)            \
  F(hipMemGetInfo)                   \
  F(hipMalloc)                       \
  F(hipFree)                         \
  F(hipHostMalloc)                   \
  F(hipHostFree)                     \
  F(hipMallocAsync)                  \
  F(hipFreeAsync)                    \
  F(hipMemAddressReserve)            \
  F(hipMemAddressFree)               \
  F(hipMemCreate)                    \
  F(hipMemRelease)                   \
  F(hipMemMap)                       \
  F(hipMemUnmap)                     \
  F(hipMemSetAccess)                 \
  F(hipMemExportToShareableHandle)   \
  F(hipMemImportFromShareableHandle) \
  F(hipMemGetAllocationGranularity)  \
  F(hipMemcpyHtoD)                   \
  F(hipMemcpyDtoH)                   \
  F(hipMemcpyHtoDAsync)              \
  F(hipMemcpyDtoHAsync)              \
  F(hipDeviceSynchronize)            \
  F(hipStreamCreateWithFlags)        \
  F(hipStreamDestroy)                \
  F(hipStreamSynchronize)            \
  F(hipEventCreateWithFlags)         \
  F(hipEventRecord)                  \
  F(hipEventSynchronize)             \
  F(hipEventDestroy)                 \
  F(hipLaunchHostFunc)

struct Hip {
  std::string path;  // of the library
#define PROBE_MEMBER(symbol) stasis::hip::fn::symbol* symbol = nullptr;
  PROBE_FUNCTIONS(PROBE_MEMBER)
#undef PROBE_MEMBER
  stasis::hip::fn::hipGetErrorName* hipGetErrorName = nullptr;
};
Hip hip;

[[noreturn]] void End(int code, const char* format, ...) __attribute__((format(printf, 2, 3)));
[[noreturn]] void End(int code, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vprintf(format, arguments);
  va_end(arguments);
  printf("\n");
  fflush(stdout);
  _exit(code);
}

void Check(hipError_t result, const char* call) {
  if (result == CUDA_SUCCESS) return;
  const char* name = hip.hipGetErrorName != nullptr ? hip.hipGetErrorName(result) : "";
  End(kWrong, "FAILED: %s returned %d (%s)", call, static_cast<int>(result), name);
}
#define HIP(call) Check(hip.call, #call)

// STASIS_CUDA_LIBRARY, or the newest library that the loader finds, or the one in ROCm's folder.
void Load() {
  std::vector<std::string> names;
  const char* chosen = getenv("STASIS_CUDA_LIBRARY");
  if (chosen != nullptr && strstr(chosen, as_driver::kLibraryName) != nullptr) {
    names.emplace_back(chosen);
  }
  for (const char* name : as_driver::kLibraries) names.emplace_back(name);
  for (const char* name : as_driver::kLibraries)
    names.push_back(std::string("/opt/rocm/lib/") + name);
  void* library = nullptr;
  std::string why;
  for (const std::string& name : names) {
    library = dlopen(name.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (library != nullptr) break;
    if (why.empty()) why = dlerror();
  }
  if (library == nullptr) End(kWrong, "FAILED: HIP's library cannot be loaded: %s", why.c_str());
  link_map* map = nullptr;
  char real[PATH_MAX];
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && realpath(map->l_name, real) != nullptr) {
    hip.path = real;
  }
#define PROBE_LOAD(symbol)                                                      \
  hip.symbol = reinterpret_cast<decltype(hip.symbol)>(dlsym(library, #symbol)); \
  if (hip.symbol == nullptr) End(kWrong, "FAILED: %s has no " #symbol, hip.path.c_str());
  PROBE_FUNCTIONS(PROBE_LOAD)
#undef PROBE_LOAD
  hip.hipGetErrorName =
      reinterpret_cast<decltype(hip.hipGetErrorName)>(dlsym(library, "hipGetErrorName"));
}

int Version() {
  int version = 0;
  HIP(hipRuntimeGetVersion(&version));
  return version;
}

CUmemAllocationProp Exportable() {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return properties;
}

size_t Granularity(const CUmemAllocationProp& properties) {
  size_t granularity = 0;
  HIP(hipMemGetAllocationGranularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  return granularity;
}

uint64_t RoundUp(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

void MapAt(CUdeviceptr address, uint64_t bytes, CUmemGenericAllocationHandle handle) {
  HIP(hipMemMap(address, bytes, 0, handle, 0));
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                               CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  HIP(hipMemSetAccess(address, bytes, &access, 1));
}

std::vector<uint64_t> Words(uint64_t seed, uint64_t bytes) {
  std::vector<uint64_t> words(bytes / sizeof(uint64_t));
  for (uint64_t i = 0; i < words.size(); ++i) words[i] = RandomWord(seed, i);
  return words;
}

void Write(CUdeviceptr address, uint64_t seed, uint64_t bytes) {
  HIP(hipMemcpyHtoD(address, Words(seed, bytes).data(), bytes));
}

// Compares the memory with Words(seed, bytes).
bool Has(CUdeviceptr address, uint64_t seed, uint64_t bytes) {
  std::vector<uint64_t> found(bytes / sizeof(uint64_t));
  HIP(hipMemcpyDtoH(found.data(), address, bytes));
  return found == Words(seed, bytes);
}

// One exportable piece of memory, mapped, as the agent makes it.
struct Piece {
  uint64_t bytes = 0;
  CUdeviceptr address = 0;
  CUmemGenericAllocationHandle handle = 0;

  explicit Piece(uint64_t wanted) {
    const CUmemAllocationProp properties = Exportable();
    bytes = RoundUp(wanted, Granularity(properties));
    HIP(hipMemAddressReserve(&address, bytes, 0, 0, 0));
    HIP(hipMemCreate(&handle, bytes, &properties, 0));
    MapAt(address, bytes, handle);
  }
  // Returns a descriptor that a child inherits.
  int Export() const {
    int fd = -1;
    HIP(hipMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    fcntl(fd, F_SETFD, 0);
    return fd;
  }
  void Release() {
    HIP(hipMemUnmap(address, bytes));
    HIP(hipMemRelease(handle));
  }
};

hipError_t Import(CUmemGenericAllocationHandle* handle, int fd, bool by_address) {
  void* argument = by_address ? static_cast<void*>(&fd) : reinterpret_cast<void*>(intptr_t{fd});
  return hip.hipMemImportFromShareableHandle(handle, argument,
                                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

bool ByAddress() { return Version() < as_driver::kDescriptorByValue; }

constexpr uint64_t kWrittenHere = 11, kWrittenByPeer = 12;

// ---- Another process: `hip_probe peer …`

// Starts this program again. Its standard input and output are those of the caller unless given.
pid_t StartPeer(std::vector<std::string> words, int in = -1, int out = -1) {
  words.insert(words.begin(), {"hip_probe", "peer"});
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (in >= 0) posix_spawn_file_actions_adddup2(&actions, in, STDIN_FILENO);
  if (out >= 0) posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
  pid_t pid = -1;
  const int error = posix_spawn(&pid, "/proc/self/exe", &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) End(kWrong, "FAILED: another process cannot be started: %s", strerror(error));
  return pid;
}

// Returns a text like "exit code 1", or an empty one if the process has succeeded.
std::string Await(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(status)) return "signal " + std::to_string(WTERMSIG(status));
  return WEXITSTATUS(status) == 0 ? "" : "exit code " + std::to_string(WEXITSTATUS(status));
}

int PeerImports(int fd, uint64_t bytes, bool by_address) {
  CUmemGenericAllocationHandle handle = 0;
  Check(Import(&handle, fd, by_address), "hipMemImportFromShareableHandle");
  CUdeviceptr address = 0;
  HIP(hipMemAddressReserve(&address, bytes, 0, 0, 0));
  MapAt(address, bytes, handle);
  if (!Has(address, kWrittenHere, bytes)) End(kWrong, "the imported memory has other contents");
  Write(address, kWrittenByPeer, bytes);
  HIP(hipDeviceSynchronize());
  HIP(hipMemUnmap(address, bytes));
  HIP(hipMemRelease(handle));
  return kOk;
}

// Tries to allocate memory for each byte of standard input, and answers + or -.
int PeerAllocates(uint64_t bytes) {
  const CUmemAllocationProp properties = Exportable();
  (void)Granularity(properties);  // initialises the runtime
  for (char order; read(STDIN_FILENO, &order, 1) == 1;) {
    CUmemGenericAllocationHandle handle = 0;
    const bool made = hip.hipMemCreate(&handle, bytes, &properties, 0) == CUDA_SUCCESS;
    if (made) HIP(hipMemRelease(handle));
    if (write(STDOUT_FILENO, made ? "+" : "-", 1) != 1) return kWrong;
  }
  return kOk;
}

int Peer(const std::vector<std::string>& words) {
  auto number = [&](size_t at) { return strtoull(words.at(at).c_str(), nullptr, 10); };
  HIP(hipSetDevice(0));
  if (words.at(0) == "import") {
    return PeerImports(static_cast<int>(number(1)), number(2), words.at(3) == "address");
  }
  return PeerAllocates(number(1));
}

// ---- Facts

constexpr uint64_t kPieceBytes = 8 * kMiB;

int ExportedMemoryIsShared() {
  Piece piece(kPieceBytes);
  Write(piece.address, kWrittenHere, piece.bytes);
  HIP(hipDeviceSynchronize());
  const std::string failed =
      Await(StartPeer({"import", std::to_string(piece.Export()), std::to_string(piece.bytes),
                       ByAddress() ? "address" : "value"}));
  if (!failed.empty()) {
    End(kWrong, "another process could not import, read and write the memory: %s", failed.c_str());
  }
  if (!Has(piece.address, kWrittenByPeer, piece.bytes)) {
    End(kWrong, "what another process wrote to the exported memory did not arrive here");
  }
  End(kOk, "another process imported, read and wrote %llu MiB of exported memory",
      static_cast<unsigned long long>(piece.bytes / kMiB));
}

int ImportTakes() {
  std::string works[2];
  for (const bool by_address : {false, true}) {
    Piece piece(kPieceBytes);
    Write(piece.address, kWrittenHere, piece.bytes);
    HIP(hipDeviceSynchronize());
    works[by_address ? 1 : 0] =
        Await(StartPeer({"import", std::to_string(piece.Export()), std::to_string(piece.bytes),
                         by_address ? "address" : "value"}));
  }
  const auto text = [&](int which) {
    return works[which].empty() ? "works" : works[which].c_str();
  };
  const bool right = works[ByAddress() ? 1 : 0].empty();
  End(right ? kOk : kWrong,
      "with version %d Stasis passes the descriptor by %s. By value: %s. By address: %s", Version(),
      ByAddress() ? "address" : "value", text(0), text(1));
}

int ExportedMemoryIsDmaBuffer() {
  Piece piece(kPieceBytes);
  const int fd = piece.Export();
  char target[PATH_MAX] = {};
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  if (readlink(link.c_str(), target, sizeof target - 1) < 0) End(kWrong, "readlink failed");
  const bool is_buffer = strstr(target, "dmabuf") != nullptr;
  const int code = is_buffer                                         ? kOk
                   : hip.path.find("/softgpu/") != std::string::npos ? kCannotTell
                                                                     : kWrong;
  End(code, "an exported descriptor is %s", target);
}

int MemoryReturnsToItsAddress() {
  Piece piece(kPieceBytes);
  Write(piece.address, kWrittenHere, piece.bytes);
  HIP(hipDeviceSynchronize());
  const CUdeviceptr address = piece.address;
  const int fd = piece.Export();
  piece.Release();  // only the descriptor holds the memory now
  CUmemGenericAllocationHandle handle = 0;
  Check(Import(&handle, fd, ByAddress()), "hipMemImportFromShareableHandle");
  MapAt(address, piece.bytes, handle);
  if (!Has(address, kWrittenHere, piece.bytes)) End(kWrong, "the contents changed");
  // Now with other memory at the same address, as a resume does it.
  HIP(hipMemUnmap(address, piece.bytes));
  HIP(hipMemRelease(handle));
  const CUmemAllocationProp properties = Exportable();
  HIP(hipMemCreate(&handle, piece.bytes, &properties, 0));
  MapAt(address, piece.bytes, handle);
  Write(address, kWrittenByPeer, piece.bytes);
  if (!Has(address, kWrittenByPeer, piece.bytes)) End(kWrong, "the new memory has other contents");
  End(kOk,
      "memory that only a descriptor held kept its contents; new memory was mapped in its place");
}

struct SlowWork {
  std::atomic<bool> begun{false}, done{false};
};
void WorkSlowly(void* data) {
  auto* work = static_cast<SlowWork*>(data);
  work->begun = true;
  usleep(300'000);  // the time that the GPU's work takes
  work->done = true;
}

int SynchronizeWaitsForAllStreams() {
  HIP(hipSetDevice(0));
  SlowWork work;
  std::thread other([&] {
    HIP(hipSetDevice(0));
    hipStream_t stream = nullptr;
    HIP(hipStreamCreateWithFlags(&stream, CU_STREAM_NON_BLOCKING));
    HIP(hipLaunchHostFunc(stream, WorkSlowly, &work));
    while (!work.begun) std::this_thread::yield();
  });
  other.join();
  if (work.done) End(kCannotTell, "the work ended too soon");
  HIP(hipDeviceSynchronize());
  if (!work.done)
    End(kWrong, "hipDeviceSynchronize returned before the work of another stream ended");
  End(kOk, "hipDeviceSynchronize waited for the work of another thread's stream");
}

int ReleasedMemoryIsFree() {
  HIP(hipSetDevice(0));
  size_t free_bytes = 0, total = 0;
  HIP(hipMemGetInfo(&free_bytes, &total));
  // Too much for two.
  const uint64_t bytes = RoundUp(free_bytes / 10 * 6, Granularity(Exportable()));
  int orders[2], answers[2];
  if (pipe2(orders, O_CLOEXEC) != 0 || pipe2(answers, O_CLOEXEC) != 0) End(kWrong, "pipe failed");
  const pid_t peer = StartPeer({"allocate", std::to_string(bytes)}, orders[0], answers[1]);
  close(answers[1]);
  auto ask = [&] {
    char answer = 0;
    if (write(orders[1], "a", 1) != 1 || read(answers[0], &answer, 1) != 1) {
      End(kWrong, "another process could not allocate: %s", Await(peer).c_str());
    }
    return answer == '+';
  };
  if (!ask())
    End(kCannotTell, "%llu MiB cannot be allocated", static_cast<unsigned long long>(bytes / kMiB));
  Piece piece(bytes);
  if (ask()) {
    End(kCannotTell, "two processes could allocate %llu MiB each, with %llu MiB free",
        static_cast<unsigned long long>(bytes / kMiB),
        static_cast<unsigned long long>(free_bytes / kMiB));
  }
  piece.Release();
  if (!ask()) End(kWrong, "another process could not allocate the memory right after its release");
  close(orders[1]);
  const std::string failed = Await(peer);
  if (!failed.empty()) End(kWrong, "another process failed: %s", failed.c_str());
  End(kOk, "another process allocated %llu MiB right after their release",
      static_cast<unsigned long long>(bytes / kMiB));
}

struct Fact {
  const char* name;
  int (*check)();
};
// docs/amd.md lists them.
constexpr Fact kFacts[] = {
    {"export", ExportedMemoryIsShared},
    {"import-argument", ImportTakes},
    {"dma-buffer", ExportedMemoryIsDmaBuffer},
    {"old-address", MemoryReturnsToItsAddress},
    {"synchronize", SynchronizeWaitsForAllStreams},
    {"released", ReleasedMemoryIsFree},
};

int Describe() {
  int driver = 0, count = 0;
  HIP(hipDriverGetVersion(&driver));
  HIP(hipGetDeviceCount(&count));
  printf("library %s\nruntime version %d\ndriver version %d\nGPUs %d\n", hip.path.c_str(),
         Version(), driver, count);
  for (int i = 0; i < count; ++i) {
    char name[256] = {}, bus[64] = {};
    CUuuid uuid{};
    size_t free_bytes = 0, total = 0;
    HIP(hipSetDevice(i));
    HIP(hipDeviceGetName(name, sizeof name - 1, i));
    HIP(hipDeviceGetPCIBusId(bus, sizeof bus - 1, i));
    HIP(hipDeviceGetUuid(&uuid, i));
    HIP(hipMemGetInfo(&free_bytes, &total));
    printf("GPU %d: %s, %s, %zu of %zu MiB free, UUID ", i, name, bus, free_bytes / kMiB,
           total / kMiB);
    for (const char byte : uuid.bytes) printf("%02x", static_cast<unsigned char>(byte));
    printf("\n");
  }
  return count > 0 ? kOk : kWrong;
}

// ---- The workload

// A piece of memory in parts of one size. Each round writes one part again.
struct Block {
  const char* kind;
  CUdeviceptr address;
  uint64_t bytes;
  std::vector<uint64_t> seeds;  // of each part
};

constexpr uint64_t kPart = kMiB;
constexpr uint64_t kDefaultBytes = 64 * kMiB;
constexpr uint64_t kSmall = 64 * 1024;  // the agent leaves it in the context

class Probe : public Workload {
 public:
  void SetUp(const Options& options) override {
    HIP(hipSetDevice(options.device));
    HIP(hipStreamCreateWithFlags(&stream_, CU_STREAM_NON_BLOCKING));
    HIP(hipEventCreateWithFlags(&event_, CU_EVENT_DISABLE_TIMING));
    HIP(hipHostMalloc(&pinned_, kPart, 0));
    const uint64_t bytes = options.memory_bytes == 0 ? kDefaultBytes : options.memory_bytes;
    // Each kind gets whole parts.
    const uint64_t quarter = std::max(kPart, bytes / 4 / kPart * kPart);
    CUdeviceptr plain = 0, pool = 0, small = 0;
    HIP(hipMalloc(&plain, 2 * quarter));
    HIP(hipMallocAsync(&pool, quarter, stream_));
    HIP(hipStreamSynchronize(stream_));
    HIP(hipMalloc(&small, kSmall));
    piece_.emplace_back(quarter);
    blocks_ = {{"hipMalloc", plain, 2 * quarter, {}},
               {"hipMallocAsync", pool, quarter, {}},
               {"hipMemCreate", piece_[0].address, quarter, {}},
               {"a small hipMalloc", small, kSmall, {}}};
    for (Block& block : blocks_) {
      block.seeds.resize(RoundUp(block.bytes, kPart) / kPart);
      for (size_t part = 0; part < block.seeds.size(); ++part) WritePart(block, part);
    }
  }

  uint64_t Round(uint64_t round) override {
    const uint64_t sum = CompareAll();
    for (Block& block : blocks_) WritePart(block, round % block.seeds.size());
    return sum;
  }
  void Verify() override { CompareAll(); }
  void Sabotage() override {
    const uint64_t wrong = 0;
    HIP(hipMemcpyHtoD(blocks_[0].address + blocks_[0].bytes - sizeof wrong,
                      const_cast<uint64_t*>(&wrong), sizeof wrong));
  }
  void TearDown() override {
    HIP(hipFree(blocks_[0].address));
    HIP(hipFreeAsync(blocks_[1].address, stream_));
    HIP(hipStreamSynchronize(stream_));
    piece_[0].Release();
    HIP(hipMemAddressFree(piece_[0].address, piece_[0].bytes));
    HIP(hipFree(blocks_[3].address));
    HIP(hipHostFree(pinned_));
    HIP(hipEventDestroy(event_));
    HIP(hipStreamDestroy(stream_));
  }

 private:
  static uint64_t PartBytes(const Block& block, size_t part) {
    return std::min(kPart, block.bytes - part * kPart);
  }

  void AwaitStream() {
    HIP(hipEventRecord(event_, stream_));
    HIP(hipEventSynchronize(event_));
  }

  void WritePart(Block& block, size_t part) {
    block.seeds[part] = ++last_seed_;
    const uint64_t bytes = PartBytes(block, part);
    auto* words = static_cast<uint64_t*>(pinned_);
    for (uint64_t i = 0; i < bytes / sizeof(uint64_t); ++i) words[i] = RandomWord(last_seed_, i);
    HIP(hipMemcpyHtoDAsync(block.address + part * kPart, pinned_, bytes, stream_));
    AwaitStream();
  }

  // Returns a checksum of everything.
  uint64_t CompareAll() {
    uint64_t sum = 0;
    for (const Block& block : blocks_) {
      for (size_t part = 0; part < block.seeds.size(); ++part) {
        const uint64_t bytes = PartBytes(block, part);
        memset(pinned_, 0, bytes);
        HIP(hipMemcpyDtoHAsync(pinned_, block.address + part * kPart, bytes, stream_));
        AwaitStream();
        const auto* words = static_cast<const uint64_t*>(pinned_);
        for (uint64_t i = 0; i < bytes / sizeof(uint64_t); ++i) {
          if (words[i] != RandomWord(block.seeds[part], i)) {
            Fail("memory of %s differs at byte %llu", block.kind,
                 static_cast<unsigned long long>(part * kPart + i * sizeof(uint64_t)));
          }
        }
        sum = Mix64(sum + words[0]);
      }
    }
    return sum;
  }

  hipStream_t stream_ = nullptr;
  hipEvent_t event_ = nullptr;
  void* pinned_ = nullptr;
  std::vector<Piece> piece_;
  std::vector<Block> blocks_;
  uint64_t last_seed_ = 0;
};

}  // namespace
}  // namespace workloads

int main(int argc, char** argv) {
  using namespace workloads;  // NOLINT
  const std::vector<std::string> words(argv + 1, argv + argc);
  const std::string verb = words.empty() ? "" : words[0];
  if (verb == "describe" || verb == "fact" || verb == "peer") {
    setvbuf(stdout, nullptr, _IOLBF, 0);
    Load();
    if (verb == "describe") return Describe();
    if (verb == "peer") return Peer({words.begin() + 1, words.end()});
    for (const Fact& fact : kFacts) {
      if (words.size() == 2 && words[1] == fact.name) return fact.check();
    }
    End(2, "usage: hip_probe fact NAME");
  }
  const Options options = Begin(argc, argv);
  Load();
  Probe probe;
  Run(probe, options);
}
