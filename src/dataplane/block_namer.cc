#include "dataplane/block_namer.h"

#include <sys/random.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <memory>
#include <string>

#include "base/install_layout.h"
#include "dataplane/kernel/block_names.h"
#include "image/limits.h"

// kernel/block_names.ptx, ended by a zero.
extern "C" const char stasis_block_names_ptx[];
// NOLINTNEXTLINE(hicpp-no-assembler): what C++ has no word for
__asm__(
    ".pushsection .rodata\n"
    ".globl stasis_block_names_ptx\n"
    ".hidden stasis_block_names_ptx\n"
    "stasis_block_names_ptx:\n"
    ".incbin \"" STASIS_BLOCK_NAMES_PTX
    "\"\n"
    ".byte 0\n"
    ".popsection\n");

namespace stasis::dataplane {
namespace {

using namespace stasis::cuda;  // NOLINT: the driver's own names

static_assert(std::endian::native == std::endian::little);
static_assert(sizeof(NameResult) == sizeof(image::Id128));
static_assert(kNamePieceWords == image::kBlockPieceWords);

// So many blocks in a launch: 32 GiB.
constexpr size_t kBatch = 16384;
// Of the memory that is ours on the GPU: the key, the tasks, the results.
constexpr uint64_t kTasksAt = (sizeof(NameKey) + 255) / 256 * 256;
constexpr uint64_t kResultsAt = kTasksAt + kBatch * sizeof(NameTask);
constexpr uint64_t kMemoryBytes = kResultsAt + kBatch * sizeof(NameResult);

constexpr uint64_t kRandomBytes = 64u << 20;

// 26 bits of a number of 127.
uint32_t Limb(image::BlockKey::Number number, unsigned index) {
  const auto whole = static_cast<unsigned __int128>(number.high) << 64 | number.low;
  return static_cast<uint32_t>(whole >> (kNameLimbBits * index)) & ((1u << kNameLimbBits) - 1);
}

NameKey ForKernel(const image::BlockKey& key) {
  NameKey out;
  for (unsigned i = 0; i < kNamePieceWords; ++i) {
    for (unsigned j = 0; j < kNameLimbs; ++j) out.limbs[j][i] = Limb(key.Word(i), j);
  }
  for (unsigned n = 0; n <= kNameWarps; ++n) {
    out.powers[n][0] = key.Power(n).low;
    out.powers[n][1] = key.Power(n).high;
  }
  return out;
}

}  // namespace

Status BlockNamer::Load() {
  if (function_ != nullptr) return {};
  CUmodule module = nullptr;
  CUresult result = CUDA_SUCCESS;
  if (gpu_.is_softgpu()) {
    STASIS_ASSIGN(std::string root, InstallRoot());
    result =
        gpu_.fn().cuModuleLoad(&module, (root + "/lib/softgpu/block_names.softgpu.so").c_str());
  } else {
    result = gpu_.fn().cuModuleLoadData(&module, stasis_block_names_ptx);
  }
  CUfunction function = nullptr;
  if (result == CUDA_SUCCESS) {
    result = gpu_.fn().cuModuleGetFunction(&function, module, "stasis_block_names");
  }
  if (result == CUDA_SUCCESS && stream_ == nullptr) {
    result = gpu_.fn().cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING);
  }
  for (CUevent* event : {&begin_, &end_}) {
    if (result != CUDA_SUCCESS || *event != nullptr) continue;
    result = gpu_.fn().cuEventCreate(event, CU_EVENT_BLOCKING_SYNC);
  }
  if (result == CUDA_SUCCESS && memory_ == 0) {
    result = gpu_.fn().cuMemAlloc_v2(&memory_, kMemoryBytes);
  }
  if (result == CUDA_SUCCESS) {
    function_ = function;
    return {};
  }
  if (module != nullptr) gpu_.fn().cuModuleUnload(module);
  // That it cannot be loaded says nothing about what else the driver does: no domain, so that the
  // mover lives on.
  Error error = gpu_.MakeError(result, "cuModuleLoadData");
  if (error.code != Code::kResourceExhausted) error.code = Code::kUnimplemented;
  error.domain = Domain::kStasis;
  error.raw = 0;
  error.WithContext("load the kernel that names blocks");
  return Fail(std::move(error));
}

Status BlockNamer::Await() {
  STASIS_GPU(gpu_, cuStreamSynchronize, (stream_));
  return {};
}

// In the order of the kernel's stream. A copy that names no stream returns when pageable memory has
// been staged, not when it has arrived, and this stream would not wait for it: the kernel would
// read what was there before.
Status BlockNamer::Upload(CUdeviceptr to, const void* from, size_t bytes) {
  STASIS_GPU(gpu_, cuMemcpyHtoDAsync_v2, (to, from, bytes, stream_));
  return {};
}

Status BlockNamer::Prepare(image::BlockKey key) {
  if (key_ && key_->id() == key.id()) return {};
  STASIS_TRY(Load());
  key_.reset();
  const NameKey table = ForKernel(key);
  STASIS_TRY(Upload(memory_, &table, sizeof table));
  STASIS_TRY(Await());
  key_ = std::move(key);
  return {};
}

Status BlockNamer::Forget() {
  key_.reset();
  if (memory_ == 0) return {};
  STASIS_GPU(gpu_, cuMemsetD8Async, (memory_, 0, kMemoryBytes, stream_));
  return Await();
}

Result<BlockNames> BlockNamer::Name(CUdeviceptr base, const std::vector<Range>& ranges) {
  if (!key_) return Fail(Code::kFailedPrecondition, "the mover has no key to name blocks with");
  std::vector<NameTask> tasks;
  uint64_t address = base;
  for (const Range& range : ranges) {
    if (address % 16 != 0) return Fail(Code::kInternal, "a block at an odd address");
    for (uint64_t done = 0; done < range.size_bytes; done += image::kBlockBytes) {
      tasks.push_back(
          {address + done, std::min<uint64_t>(image::kBlockBytes, range.size_bytes - done)});
    }
    address += range.size_bytes;
  }
  BlockNames out;
  out.names.resize(tasks.size());
  for (size_t first = 0; first < tasks.size(); first += kBatch) {
    const size_t count = std::min(kBatch, tasks.size() - first);
    CUdeviceptr on_gpu[] = {memory_ + kTasksAt, memory_, memory_ + kResultsAt};
    void* arguments[] = {&on_gpu[0], &on_gpu[1], &on_gpu[2]};
    STASIS_TRY(Upload(on_gpu[0], &tasks[first], count * sizeof(NameTask)));
    STASIS_GPU(gpu_, cuEventRecord, (begin_, stream_));
    STASIS_GPU(gpu_, cuLaunchKernel,
               (function_, static_cast<unsigned>(count), 1, 1, kNameThreads, 1, 1, 0, stream_,
                arguments, nullptr));
    STASIS_GPU(gpu_, cuEventRecord, (end_, stream_));
    STASIS_TRY(Await());
    STASIS_GPU(gpu_, cuMemcpyDtoH_v2, (&out.names[first], on_gpu[2], count * sizeof(NameResult)));
    float milliseconds = 0;
    STASIS_GPU(gpu_, cuEventElapsedTime, (&milliseconds, begin_, end_));
    out.elapsed_ns += static_cast<uint64_t>(double{milliseconds} * 1e6);
  }
  for (size_t i = 0; i < tasks.size(); ++i) {
    if (out.names[i].IsZero()) out.zero_bytes += tasks[i].bytes;
  }
  return out;
}

Status BlockNamer::Fill(CUdeviceptr base, uint64_t bytes) {
  const uint64_t random_bytes = std::min(bytes, kRandomBytes);
  std::string random(random_bytes, '\0');
  for (uint64_t done = 0; done < random_bytes;) {
    const ssize_t n = ::getrandom(random.data() + done, random_bytes - done, 0);
    if (n < 0 && errno != EINTR) return FailErrno(errno, "read random numbers");
    done += n > 0 ? static_cast<uint64_t>(n) : 0;
  }
  STASIS_TRY(Upload(base, random.data(), random_bytes));
  for (uint64_t at = random_bytes; at < bytes; at += random_bytes) {
    STASIS_GPU(gpu_, cuMemcpyDtoDAsync_v2,
               (base + at, base, std::min(random_bytes, bytes - at), stream_));
  }
  return Await();
}

Status BlockNamer::Check(CUdeviceptr base, uint64_t bytes, const std::vector<image::Id128>& names) {
  for (size_t i : {size_t{0}, names.size() - 1}) {
    const uint64_t at = i * image::kBlockBytes;
    std::string block(std::min<uint64_t>(image::kBlockBytes, bytes - at), '\0');
    STASIS_GPU(gpu_, cuMemcpyDtoH_v2, (block.data(), base + at, block.size()));
    if (names[i] != key_->Name(block)) {
      return Fail(Code::kInternal, "the GPU names blocks otherwise than the processor");
    }
  }
  return {};
}

}  // namespace stasis::dataplane
