#include "common/gpu.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>

#include "common/arithmetic.h"

namespace workloads {
namespace {

// The programs for HIP are in a folder beside the kernels.
#if defined(WORKLOADS_HIP)
constexpr char kKernelFolder[] = "../";
constexpr char kKernelSuffix[] = ".hsaco";
#else
constexpr char kKernelFolder[] = "";
constexpr char kKernelSuffix[] = ".fatbin";
#endif

constexpr uint64_t kBallastPiece = 256ull << 20;
constexpr uint64_t kBallastSeed = 0xba11a57;

// Test data in GPU memory. It is allocated in pieces, so that the total may exceed the largest free
// block. Word i of the total is RandomWord(kBallastSeed, i).
struct Ballast {
  std::vector<CUdeviceptr> pieces;
  std::vector<uint64_t> words;
  CUmodule module = nullptr;
};

CUdevice device = 0;
CUcontext primary = nullptr;
Ballast ballast;

void FillBallast(uint64_t bytes) {
  if (bytes == 0) return;
  ballast.module = LoadModule("ballast");
  CUfunction fill = Function(ballast.module, "fill_random");
  uint64_t first = 0;
  for (uint64_t left = bytes / sizeof(uint64_t); left > 0;) {
    const uint64_t words = std::min(left, kBallastPiece / sizeof(uint64_t));
    CUdeviceptr piece = 0;
    CU(cuMemAlloc(&piece, words * sizeof(uint64_t)));
    ballast.pieces.push_back(piece);
    ballast.words.push_back(words);
    Launch(fill, GridFor(words), nullptr, piece, words, first, kBallastSeed);
    first += words;
    left -= words;
  }
  CU(cuCtxSynchronize());
}

std::string OwnPath() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  if (length <= 0) Fail("readlink /proc/self/exe: %s", strerror(errno));
  return std::string(path, static_cast<size_t>(length));
}

}  // namespace

void CheckDriver(CUresult result, const char* call, const char* file, int line) {
  if (result == CUDA_SUCCESS) return;
  const char* name = nullptr;
  cuGetErrorName(result, &name);
  Fail("%s: %s (%d) at %s:%d", call, name != nullptr ? name : "unknown error",
       static_cast<int>(result), file, line);
}

bool OnSoftgpu() { return dlsym(RTLD_DEFAULT, "softgpuVersion") != nullptr; }

void OpenGpu(const Options& options) {
  CU(cuInit(0));
  CU(cuDeviceGet(&device, options.device));
  CU(cuDevicePrimaryCtxRetain(&primary, device));
  CU(cuCtxSetCurrent(primary));
  FillBallast(options.memory_bytes);
}

bool BallastIsIntact(uint64_t* checksum) {
  *checksum = 0;
  std::vector<uint64_t> window((8u << 20) / sizeof(uint64_t));
  uint64_t index = 0;
  for (size_t piece = 0; piece < ballast.pieces.size(); ++piece) {
    for (uint64_t done = 0; done < ballast.words[piece];) {
      const uint64_t words = std::min<uint64_t>(window.size(), ballast.words[piece] - done);
      CU(cuMemcpyDtoH(window.data(), ballast.pieces[piece] + done * sizeof(uint64_t),
                      words * sizeof(uint64_t)));
      for (uint64_t i = 0; i < words; ++i, ++index) {
        if (window[i] != RandomWord(kBallastSeed, index)) return false;
        *checksum += window[i];
      }
      done += words;
    }
  }
  return true;
}

uint64_t VerifyBallast() {
  uint64_t checksum = 0;
  if (!BallastIsIntact(&checksum)) Fail("the test data has changed");
  return checksum;
}

void CloseGpu() {
  for (CUdeviceptr piece : ballast.pieces) CU(cuMemFree(piece));
  if (ballast.module != nullptr) CU(cuModuleUnload(ballast.module));
  ballast = {};
  CU(cuDevicePrimaryCtxRelease(device));
}

CUdevice Device() { return device; }
CUcontext PrimaryContext() { return primary; }

std::string ImagePath(const std::string& name) {
  const std::string own = OwnPath();
  const size_t slash = own.rfind('/');
  return own.substr(0, slash + 1) + kKernelFolder + (name.empty() ? own.substr(slash + 1) : name) +
         (OnSoftgpu() ? ".softgpu.so" : kKernelSuffix);
}

std::string ReadFile(const std::string& path) {
  FILE* file = fopen(path.c_str(), "rb");
  if (file == nullptr) Fail("%s: %s", path.c_str(), strerror(errno));
  std::string contents;
  char part[4096];
  for (size_t length; (length = fread(part, 1, sizeof part, file)) > 0;) {
    contents.append(part, length);
  }
  fclose(file);
  return contents;
}

CUmodule LoadModule(const std::string& name) {
  CUmodule module = nullptr;
  CU(cuModuleLoad(&module, ImagePath(name).c_str()));
  return module;
}

CUfunction Function(CUmodule module, const char* name) {
  CUfunction function = nullptr;
  CU(cuModuleGetFunction(&function, module, name));
  return function;
}

Global FindGlobal(CUmodule module, const char* name) {
  Global global{};
  CU(cuModuleGetGlobal(&global.address, &global.bytes, module, name));
  return global;
}

void FlipByte(CUdeviceptr address) {
  unsigned char byte = 0;
  CU(cuMemcpyDtoH(&byte, address, 1));
  byte ^= 0x40;
  CU(cuMemcpyHtoD(address, &byte, 1));
}

Grid GridFor(uint64_t count) {
  // softgpu runs threads on a CPU, so use few of them with more work each.
  const uint32_t threads = OnSoftgpu() ? 32 : 256;
  const uint64_t most_blocks = OnSoftgpu() ? 4 : 2048;
  const uint64_t blocks = std::clamp<uint64_t>((count + threads - 1) / threads, 1, most_blocks);
  return {static_cast<uint32_t>(blocks), threads};
}

std::vector<uint32_t> RandomWords(uint64_t seed, size_t count) {
  std::vector<uint32_t> words(count);
  for (size_t i = 0; i < count; ++i) words[i] = RandomWord32(seed, i);
  return words;
}

std::vector<uint32_t> StepWith(const std::vector<uint32_t>& own, const std::vector<uint32_t>& other,
                               uint32_t round) {
  const auto count = static_cast<uint32_t>(own.size());
  std::vector<uint32_t> next(count);
  for (uint32_t i = 0; i < count; ++i) {
    next[i] = Step(own[i], other[i + 1 == count ? 0 : i + 1], i, round);
  }
  return next;
}

void StepInPlace(std::vector<uint32_t>& words, uint32_t round) {
  const auto count = static_cast<uint32_t>(words.size());
  for (uint32_t i = 0; i < count; ++i) words[i] = Step(words[i], i ^ round, i, round);
}

uint64_t Checksum(const uint32_t* words, size_t count) {
  uint64_t sum = 0;
  for (size_t i = 0; i < count; ++i) sum += ChecksumShare(words[i], i);
  return sum;
}

uint64_t Checksum(const std::vector<uint32_t>& words) {
  return Checksum(words.data(), words.size());
}

void Compare(const char* what, const uint32_t* found, const uint32_t* expected, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (found[i] != expected[i]) {
      Fail("%s: element %zu of %zu is 0x%08x, not 0x%08x", what, i, count, found[i], expected[i]);
    }
  }
}

void Compare(const char* what, const std::vector<uint32_t>& found,
             const std::vector<uint32_t>& expected) {
  if (found.size() != expected.size()) Fail("%s: %zu elements", what, found.size());
  Compare(what, found.data(), expected.data(), found.size());
}

}  // namespace workloads
