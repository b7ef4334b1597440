// Measures the raw speed of a machine with two GPUs: copies between each of them and host memory,
// alone and concurrently, best of three. Host memory is a file on a tmpfs, like an arena.
//
//   nvcc -O2 -o wires_probe wires_probe.cu && mount -t tmpfs -o huge=always none /mnt &&
//   ./wires_probe /mnt/x 40
#include <cuda_runtime.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

namespace {

constexpr size_t kGib = size_t{1} << 30, kPiece = size_t{64} << 20;
constexpr int kGpus = 2, kStreams = 2, kRounds = 3, kThreads = 16;

void Check(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(result));
  std::exit(1);
}
#define CHECK(call) Check(call, #call)

struct Gpu {
  char* memory = nullptr;
  char* host = nullptr;
  cudaStream_t streams[kStreams] = {};
};

void Copy(int ordinal, const Gpu& gpu, size_t bytes, cudaMemcpyKind kind) {
  CHECK(cudaSetDevice(ordinal));
  for (size_t at = 0; at < bytes; at += kPiece) {
    char *to = gpu.host + at, *from = gpu.memory + at;
    if (kind == cudaMemcpyHostToDevice) std::swap(to, from);
    CHECK(cudaMemcpyAsync(to, from, kPiece, kind, gpu.streams[at / kPiece % kStreams]));
  }
  for (cudaStream_t stream : gpu.streams) CHECK(cudaStreamSynchronize(stream));
}

double BestOf(const std::function<void()>& work) {
  double best = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    const auto began = std::chrono::steady_clock::now();
    work();
    best = std::min(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
  }
  return best;
}

void InParallel(int count, const std::function<void(int)>& work) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back(work, i);
  for (auto& thread : threads) thread.join();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: wires_probe FILE GIB\n");
    return 2;
  }
  const size_t bytes = std::strtoull(argv[2], nullptr, 10) * kGib;
  const int fd = ::open(argv[1], O_RDWR | O_CREAT, 0600);
  if (bytes == 0 || fd < 0 || ::ftruncate(fd, static_cast<off_t>(kGpus * bytes)) != 0) {
    std::perror(argv[1]);
    return 1;
  }
  void* mapped = ::mmap(nullptr, kGpus * bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) {
    std::perror("mmap");
    return 1;
  }
  ::unlink(argv[1]);
  char* host = static_cast<char*>(mapped);
  InParallel(kThreads, [&](int i) {
    const size_t part = kGpus * bytes / kThreads;
    for (size_t at = i * part; at < (i + 1) * part; at += 4096) host[at] = 1;
  });
  Gpu gpus[kGpus];
  for (int i = 0; i < kGpus; ++i) {
    CHECK(cudaSetDevice(i));
    gpus[i].host = host + i * bytes;
    CHECK(cudaMalloc(&gpus[i].memory, bytes));
    CHECK(cudaMemset(gpus[i].memory, 0x5a + i, bytes));
    for (auto& stream : gpus[i].streams)
      CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (size_t at = 0; at < bytes; at += kGib) {
      CHECK(cudaHostRegister(gpus[i].host + at, kGib, cudaHostRegisterPortable));
    }
  }
  for (auto kind : {cudaMemcpyDeviceToHost, cudaMemcpyHostToDevice}) {
    const double first = BestOf([&] { Copy(0, gpus[0], bytes, kind); });
    const double second = BestOf([&] { Copy(1, gpus[1], bytes, kind); });
    const double both =
        BestOf([&] { InParallel(kGpus, [&](int i) { Copy(i, gpus[i], bytes, kind); }); });
    std::printf("%s: GPU 0 %.3f s, GPU 1 %.3f s, both at once %.3f s, both / one %.3f\n",
                kind == cudaMemcpyDeviceToHost ? "out" : "in", first, second, both,
                both / std::max(first, second));
  }
}
