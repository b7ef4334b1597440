// Measures how fast a file in the page cache reaches GPU memory: copied by the driver from a
// mapping, from a mapping that is registered first, and through a ring of pinned buffers that
// threads fill.
//
//   nvcc -O2 -std=c++17 -o page_cache_probe page_cache_probe.cu -lcuda &&
//   ./page_cache_probe /dev/shm/x 16 && ./page_cache_probe /tmp/x 16
//
// The file gets that many GiB of random words and is deleted at the end. After each method four
// parts of the GPU's memory are read back and compared.
#include <cuda.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

namespace {

constexpr size_t kMib = size_t{1} << 20, kGib = size_t{1} << 30;
constexpr size_t kRegistered = 256 * kMib, kCompared = 64 * kMib;
constexpr unsigned kReadOnly = CU_MEMHOSTREGISTER_READ_ONLY | CU_MEMHOSTREGISTER_PORTABLE;
constexpr int kFillers = 16;

void Check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  const char* name = "?";
  cuGetErrorName(result, &name);
  std::fprintf(stderr, "%s: %s\n", what, name);
  std::exit(1);
}
#define CHECK(call) Check(call, #call)

void CheckSystem(bool good, const char* what) {
  if (good) return;
  std::perror(what);
  std::exit(1);
}

struct Probe {
  CUcontext context = nullptr;
  CUdeviceptr memory = 0;
  size_t bytes = 0;
  int file = -1;
  char* mapping = nullptr;
};

double SecondsOf(const std::function<void()>& work) {
  const auto began = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

void InParallel(int count, const std::function<void(int)>& work) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
}

void WriteNoise(const Probe& probe) {
  InParallel(kFillers, [&](int i) {
    std::vector<uint64_t> words(kMib / sizeof(uint64_t));
    uint64_t word = 0x9e3779b97f4a7c15 * (i + 1);
    for (size_t at = i * kMib; at < probe.bytes; at += kFillers * kMib) {
      for (uint64_t& one : words) {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        one = word;
      }
      CheckSystem(::pwrite(probe.file, words.data(), kMib, at) == ssize_t(kMib), "pwrite");
    }
  });
}

// Compares a part of each quarter of the GPU's memory with the file, and clears that memory.
void CompareAndClear(const Probe& probe) {
  std::vector<char> read(kCompared);
  for (size_t at = 0; at < probe.bytes; at += probe.bytes / 4) {
    CHECK(cuMemcpyDtoH(read.data(), probe.memory + at, kCompared));
    if (std::memcmp(read.data(), probe.mapping + at, kCompared) != 0) {
      std::fprintf(stderr, "wrong data at %zu\n", at);
      std::exit(1);
    }
  }
  CHECK(cuMemsetD8(probe.memory, 0, probe.bytes));
  CHECK(cuCtxSynchronize());
}

void Report(const Probe& probe, const char* what, double seconds) {
  std::printf("%-56s %.3f s %5.1f GB/s\n", what, seconds, probe.bytes / seconds / 1e9);
  std::fflush(stdout);
}

void CopyMapping(const Probe& probe) {
  Report(probe, "the driver copies from the mapping",
         SecondsOf([&] { CHECK(cuMemcpyHtoD(probe.memory, probe.mapping, probe.bytes)); }));
  CompareAndClear(probe);
}

void RegisterMapping(const Probe& probe) {
  Report(probe, "register the mapping", SecondsOf([&] {
           for (size_t at = 0; at < probe.bytes; at += kRegistered) {
             CHECK(cuMemHostRegister(probe.mapping + at, kRegistered, kReadOnly));
           }
         }));
  Report(probe, "copy from the registered mapping", SecondsOf([&] {
           for (size_t at = 0; at < probe.bytes; at += kRegistered) {
             CHECK(cuMemcpyHtoDAsync(probe.memory + at, probe.mapping + at, kRegistered, nullptr));
           }
           CHECK(cuCtxSynchronize());
         }));
  CompareAndClear(probe);
  Report(probe, "unregister", SecondsOf([&] {
           for (size_t at = 0; at < probe.bytes; at += kRegistered) {
             CHECK(cuMemHostUnregister(probe.mapping + at));
           }
         }));
}

// Each thread has two buffers of `piece` bytes and fills one while the GPU reads the other.
void CopyThroughRing(const Probe& probe, int threads, size_t piece) {
  void* ring = nullptr;
  CHECK(cuMemHostAlloc(&ring, threads * 2 * piece, CU_MEMHOSTALLOC_PORTABLE));
  std::atomic<size_t> next{0};
  const double seconds = SecondsOf([&] {
    InParallel(threads, [&](int thread) {
      CHECK(cuCtxSetCurrent(probe.context));
      CUstream stream = nullptr;
      CUevent read[2];
      CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
      for (CUevent& event : read) CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
      size_t at;
      for (int round = 0; (at = next.fetch_add(piece)) < probe.bytes; ++round) {
        const int half = round % 2;
        char* const buffer = static_cast<char*>(ring) + (2 * thread + half) * piece;
        if (round >= 2) CHECK(cuEventSynchronize(read[half]));
        CheckSystem(::pread(probe.file, buffer, piece, at) == ssize_t(piece), "pread");
        CHECK(cuMemcpyHtoDAsync(probe.memory + at, buffer, piece, stream));
        CHECK(cuEventRecord(read[half], stream));
      }
      CHECK(cuStreamSynchronize(stream));
      for (CUevent event : read) CHECK(cuEventDestroy(event));
      CHECK(cuStreamDestroy(stream));
    });
  });
  char what[80];
  std::snprintf(what, sizeof what, "pinned ring: %d threads, 2 buffers of %zu MiB each", threads,
                piece / kMib);
  Report(probe, what, seconds);
  CompareAndClear(probe);
  CHECK(cuMemFreeHost(ring));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "page_cache_probe FILE GIB\n");
    return 2;
  }
  Probe probe;
  probe.bytes = std::strtoull(argv[2], nullptr, 10) * kGib;
  CUdevice device;
  CHECK(cuInit(0));
  CHECK(cuDeviceGet(&device, 0));
  CHECK(cuDevicePrimaryCtxRetain(&probe.context, device));
  CHECK(cuCtxSetCurrent(probe.context));
  CHECK(cuMemAlloc(&probe.memory, probe.bytes));
  probe.file = ::open(argv[1], O_RDWR | O_CREAT | O_EXCL, 0600);
  CheckSystem(probe.file >= 0, argv[1]);
  ::unlink(argv[1]);
  WriteNoise(probe);
  CheckSystem(::fsync(probe.file) == 0, "fsync");
  probe.mapping =
      static_cast<char*>(::mmap(nullptr, probe.bytes, PROT_READ, MAP_SHARED, probe.file, 0));
  CheckSystem(probe.mapping != MAP_FAILED, "mmap");

  CopyMapping(probe);
  RegisterMapping(probe);
  for (int threads : {4, 8, 12, 16}) {
    for (size_t piece : {1 * kMib, 2 * kMib, 4 * kMib, 16 * kMib}) {
      CopyThroughRing(probe, threads, piece);
    }
  }
}
