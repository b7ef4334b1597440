// A program with a statically linked CUDA runtime (nvcc -cudart static).
//
//   cudart_probe --memory GIB   cudaMalloc memory with known words, changed and verified
//                               every round
//   cudart_probe --stack        kernels with recursion and large local arrays, every round, with a
//                               raised stack limit, compared with the CPU
//   cudart_probe --calls        nanoseconds of cheap calls, CALL <name> <ns>; of calls through the
//                               driver's addresses and through those that a program gets, in turns,
//                               PAIR <name> <ns> <ns>; then exits
//
// Otherwise it follows the workloads' protocol: READY, ROUND <n> <checksum>, SIGTERM, EXIT-SUCCESS
// or FAILED.
#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

namespace {

constexpr uint64_t kPieceWords = 1ull << 28;  // 1 GiB
constexpr int kBlocks = 1024;
constexpr int kThreads = 128;
constexpr size_t kStackLimit = 16 * 1024;
constexpr int kDepth = 60;
constexpr int kLocalWords = 2048;

volatile sig_atomic_t g_stop = 0;

[[noreturn]] void Fail(const char* what, const char* why) {
  printf("FAILED: %s: %s\n", what, why);
  fflush(stdout);
  _exit(1);
}

#define RT(call)                                                      \
  do {                                                                \
    const cudaError_t error = (call);                                 \
    if (error != cudaSuccess) Fail(#call, cudaGetErrorString(error)); \
  } while (false)

__host__ __device__ inline uint32_t Mixed(uint32_t word) {
  word = (word ^ word >> 15) * 0x85EBCA6Bu;
  word = (word ^ word >> 15) * 0xC2B2AE35u;
  return word ^ word >> 16;
}

__global__ void Fill(uint32_t* words, uint64_t n, uint32_t seed) {
  for (uint64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    words[i] = Mixed(static_cast<uint32_t>(i) ^ seed);
}

// Replaces the words of one seed by those of the next; counts wrong words.
__global__ void Advance(uint32_t* words, uint64_t n, uint32_t seed, uint32_t next,
                        unsigned long long* bad) {
  for (uint64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    if (words[i] != Mixed(static_cast<uint32_t>(i) ^ seed)) atomicAdd(bad, 1ull);
    words[i] = Mixed(static_cast<uint32_t>(i) ^ next);
  }
}

// Every frame is used after its callee has returned.
__host__ __device__ __noinline__ uint32_t Recurse(int depth, uint32_t seed) {
  uint32_t frame[16];
  for (int i = 0; i < 16; ++i) frame[i] = Mixed(seed + i);
  uint32_t sum = depth == 0 ? seed : Recurse(depth - 1, frame[seed % 16]);
  for (int i = 0; i < 16; ++i) sum = sum * 31 + frame[(sum + i) % 16];
  return sum;
}

__host__ __device__ __noinline__ uint32_t BigLocal(uint32_t seed) {
  uint32_t local[kLocalWords];
  for (int i = 0; i < kLocalWords; ++i) local[i] = Mixed(seed ^ i);
  uint32_t at = seed;
  for (int i = 0; i < 256; ++i) {
    const uint32_t word = local[at % kLocalWords];
    local[(at >> 11) % kLocalWords] ^= at;
    at = at * 31 + word;
  }
  return at;
}

__global__ void Recursion(uint32_t* out, uint32_t seed) {
  const uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x;
  out[thread] = Recurse(kDepth, seed + thread % 1024);
}

__global__ void BigLocals(uint32_t* out, uint32_t seed) {
  const uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x;
  out[thread] = BigLocal(seed + thread % 1024);
}

__global__ void Empty() {}

class Memory {
 public:
  explicit Memory(int gib) : pieces_(gib) {
    RT(cudaMalloc(&bad_, sizeof *bad_));
    RT(cudaMemset(bad_, 0, sizeof *bad_));
    for (size_t p = 0; p < pieces_.size(); ++p) {
      RT(cudaMalloc(&pieces_[p], kPieceWords * sizeof(uint32_t)));
      Fill<<<kBlocks, kThreads>>>(pieces_[p], kPieceWords, Seed(p, 0));
    }
    RT(cudaDeviceSynchronize());
  }

  uint32_t Round(uint32_t round) {
    for (size_t p = 0; p < pieces_.size(); ++p)
      Advance<<<kBlocks, kThreads>>>(pieces_[p], kPieceWords, Seed(p, round - 1), Seed(p, round),
                                     bad_);
    unsigned long long bad = 0;
    RT(cudaMemcpy(&bad, bad_, sizeof bad, cudaMemcpyDeviceToHost));
    if (bad != 0) Fail("memory", "words are not what they must be");
    return Mixed(round);
  }

 private:
  static uint32_t Seed(size_t piece, uint32_t round) {
    return Mixed(static_cast<uint32_t>(piece) * 65537 + round);
  }
  std::vector<uint32_t*> pieces_;
  unsigned long long* bad_ = nullptr;
};

class Stack {
 public:
  Stack() : host_(kBlocks * kThreads) {
    RT(cudaMalloc(&out_, host_.size() * sizeof(uint32_t)));
    // Once with the default limit, which the driver raises itself for local arrays.
    Check(BigLocals, BigLocal, 7, "big local arrays");
    RT(cudaDeviceSetLimit(cudaLimitStackSize, kStackLimit));
  }

  uint32_t Round(uint32_t round) {
    size_t limit = 0;
    RT(cudaDeviceGetLimit(&limit, cudaLimitStackSize));
    if (limit != kStackLimit) Fail("stack limit", "not what was set");
    const uint32_t seed = Mixed(round);
    return Check(
               Recursion, [](uint32_t s) { return Recurse(kDepth, s); }, seed, "recursion") ^
           Check(BigLocals, BigLocal, seed, "big local arrays");
  }

 private:
  uint32_t Check(void (*kernel)(uint32_t*, uint32_t), uint32_t (*same)(uint32_t), uint32_t seed,
                 const char* what) {
    kernel<<<kBlocks, kThreads>>>(out_, seed);
    RT(cudaGetLastError());
    RT(cudaMemcpy(host_.data(), out_, host_.size() * sizeof(uint32_t), cudaMemcpyDeviceToHost));
    uint32_t expected[1024];
    uint32_t sum = 0;
    for (uint32_t t = 0; t < 1024; ++t) sum = sum * 31 + (expected[t] = same(seed + t));
    for (size_t t = 0; t < host_.size(); ++t) {
      if (host_[t] != expected[t % 1024]) Fail(what, "the kernel's result is not the CPU's");
    }
    return sum;
  }
  std::vector<uint32_t> host_;
  uint32_t* out_ = nullptr;
};

// Measures nanoseconds per call in a batch on an idle stream.
template <typename Call>
double BatchNs(Call call) {
  constexpr int kBatch = 200;
  timespec from{}, to{};
  clock_gettime(CLOCK_MONOTONIC, &from);
  for (int i = 0; i < kBatch; ++i) call();
  clock_gettime(CLOCK_MONOTONIC, &to);
  RT(cudaDeviceSynchronize());
  return ((to.tv_sec - from.tv_sec) * 1e9 + (to.tv_nsec - from.tv_nsec)) / kBatch;
}

double LowerQuarter(std::vector<double>& batches) {
  std::sort(batches.begin(), batches.end());
  return batches[batches.size() / 4];
}

template <typename Call>
void Time(const char* name, Call call) {
  std::vector<double> batches;
  for (int b = 0; b < 600; ++b) batches.push_back(BatchNs(call));
  printf("CALL %s %.2f\n", name, LowerQuarter(batches));
}

// Returns the driver's own function from its symbol table, bypassing any library in front of it.
void* DriverAddress(const char* name) {
  struct Search {
    const char* name;
    void* found;
  } search{name, nullptr};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto& wanted = *static_cast<Search*>(data);
        if (strstr(info->dlpi_name, "libcuda.so") == nullptr) return 0;
        const char* strings = nullptr;
        const ElfW(Sym)* symbols = nullptr;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          if (info->dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
          auto* entry = reinterpret_cast<ElfW(Dyn)*>(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
          for (; entry->d_tag != DT_NULL; ++entry) {
            if (entry->d_tag == DT_STRTAB) strings = reinterpret_cast<char*>(entry->d_un.d_ptr);
            if (entry->d_tag == DT_SYMTAB)
              symbols = reinterpret_cast<ElfW(Sym)*>(entry->d_un.d_ptr);
          }
        }
        // Linkers place the strings after the symbols.
        for (auto* s = symbols; s != nullptr && reinterpret_cast<const char*>(s) < strings; ++s) {
          if (s->st_value != 0 && strcmp(strings + s->st_name, wanted.name) == 0)
            wanted.found = reinterpret_cast<void*>(info->dlpi_addr + s->st_value);
        }
        return wanted.found != nullptr ? 1 : 0;
      },
      &search);
  if (search.found == nullptr) Fail(name, "the driver's symbol table has no such name");
  return search.found;
}

// Compares calls of a function by the driver's own address and by the address that a program gets,
// alternately, in one process and one stream.
template <typename Function, typename Call>
void TimePair(const char* name, Call call) {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  auto* plain = reinterpret_cast<Function*>(DriverAddress(name));
  auto* given = reinterpret_cast<Function*>(dlsym(driver, name));
  std::vector<double> plain_ns, given_ns;
  for (int b = 0; b < 1000; ++b) {
    plain_ns.push_back(BatchNs([&] { call(plain); }));
    given_ns.push_back(BatchNs([&] { call(given); }));
  }
  printf("PAIR %s%s %.2f %.2f\n", name, plain == given ? "(not-hooked)" : "",
         LowerQuarter(plain_ns), LowerQuarter(given_ns));
}

// Allocates memory like the agent: an exportable handle, mapped in a reservation.
void MapExportable() {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  auto find = [&](const char* name) {
    void* found = dlsym(driver, name);
    if (found == nullptr) Fail(name, "the driver has no such function");
    return found;
  };
  auto* create = reinterpret_cast<decltype(&cuMemCreate)>(find("cuMemCreate"));
  auto* reserve = reinterpret_cast<decltype(&cuMemAddressReserve)>(find("cuMemAddressReserve"));
  auto* map = reinterpret_cast<decltype(&cuMemMap)>(find("cuMemMap"));
  auto* access = reinterpret_cast<decltype(&cuMemSetAccess)>(find("cuMemSetAccess"));
  constexpr size_t kBytes = 32 << 20;
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemAccessDesc all{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUmemGenericAllocationHandle handle;
  CUdeviceptr address;
  if (create(&handle, kBytes, &properties, 0) != CUDA_SUCCESS ||
      reserve(&address, kBytes, 0, 0, 0) != CUDA_SUCCESS ||
      map(address, kBytes, 0, handle, 0) != CUDA_SUCCESS ||
      access(address, kBytes, &all, 1) != CUDA_SUCCESS) {
    Fail("cuMemMap", "no exportable memory");
  }
}

void TimeCalls() {
  cpu_set_t here;
  CPU_ZERO(&here);
  CPU_SET(sched_getcpu(), &here);
  sched_setaffinity(0, sizeof here, &here);
  cudaStream_t stream;
  cudaEvent_t event;
  void* memory;
  RT(cudaStreamCreate(&stream));
  RT(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  RT(cudaMalloc(&memory, 1 << 20));
  for (int i = 0; i < 200; ++i) Empty<<<1, 1, 0, stream>>>();
  RT(cudaDeviceSynchronize());
  Time("cudaGetLastError", [] { cudaGetLastError(); });
  Time("cudaStreamQuery", [&] { cudaStreamQuery(stream); });
  Time("cudaEventRecord", [&] { cudaEventRecord(event, stream); });
  Time("empty-launch", [&] { Empty<<<1, 1, 0, stream>>>(); });
  MapExportable();
  Time("empty-launch-beside-exportable-memory", [&] { Empty<<<1, 1, 0, stream>>>(); });
  Time("cudaMemsetAsync", [&] { cudaMemsetAsync(memory, 0, 64, stream); });
  Time("cudaPointerGetAttributes", [&] {
    cudaPointerAttributes attributes;
    cudaPointerGetAttributes(&attributes, memory);
  });
  RT(cudaGetLastError());

  cudaFunction_t empty;
  RT(cudaGetFuncBySymbol(&empty, reinterpret_cast<const void*>(&Empty)));
  TimePair<decltype(cuStreamQuery)>("cuStreamQuery", [&](auto* call) { call(stream); });
  TimePair<decltype(cuEventRecord)>("cuEventRecord", [&](auto* call) { call(event, stream); });
  TimePair<decltype(cuLaunchKernel)>("cuLaunchKernel", [&](auto* call) {
    call(reinterpret_cast<CUfunction>(empty), 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr);
  });
  TimePair<decltype(cuMemsetD8Async)>("cuMemsetD8Async", [&](auto* call) {
    call(reinterpret_cast<CUdeviceptr>(memory), 0, 64, stream);
  });
  TimePair<decltype(cuMemcpyHtoDAsync_v2)>("cuMemcpyHtoDAsync_v2", [&](auto* call) {
    static char bytes[64];
    call(reinterpret_cast<CUdeviceptr>(memory), bytes, sizeof bytes, stream);
  });
}

template <typename Work>
void Run(Work& work) {
  puts("READY");
  for (uint32_t round = 1; g_stop == 0; ++round) {
    printf("ROUND %u %08x\n", round, work.Round(round));
    usleep(20000);
  }
}

}  // namespace

int main(int argc, char** argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  struct sigaction action {};
  action.sa_handler = [](int) { g_stop = 1; };
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
  if (argc == 3 && strcmp(argv[1], "--memory") == 0) {
    Memory memory(atoi(argv[2]));
    Run(memory);
  } else if (argc == 2 && strcmp(argv[1], "--stack") == 0) {
    Stack stack;
    Run(stack);
  } else if (argc == 2 && strcmp(argv[1], "--calls") == 0) {
    TimeCalls();
  } else {
    fprintf(stderr, "usage: %s --memory GIB | --stack | --calls\n", argv[0]);
    return 2;
  }
  puts("EXIT-SUCCESS");
  return 0;
}
