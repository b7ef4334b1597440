#include "dataplane/block_hasher.h"

#include <sys/random.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>

#include "base/block_hash.h"
#include "base/install_layout.h"

// kernel/block_hashes.ptx, zero-terminated.
extern "C" const char stasis_block_hashes_ptx[];
// NOLINTNEXTLINE(hicpp-no-assembler): C++20 cannot embed a file
__asm__(
    ".pushsection .rodata\n"
    ".globl stasis_block_hashes_ptx\n"
    ".hidden stasis_block_hashes_ptx\n"
    "stasis_block_hashes_ptx:\n"
    ".incbin \"" STASIS_BLOCK_HASHES_PTX
    "\"\n"
    ".byte 0\n"
    ".popsection\n");

namespace stasis::dataplane {
namespace {

using namespace stasis::cuda;  // NOLINT: the driver's own names

static_assert(std::endian::native == std::endian::little);
static_assert(sizeof(HashResult) == sizeof(Id128));
static_assert(kHashPieceWords == kBlockPieceWords);

// Layout of the buffer on the GPU: the key, then the tasks.
constexpr uint64_t kTasksAt = (sizeof(HashKey) + 255) / 256 * 256;

constexpr uint64_t kRandomBytes = 64u << 20;

// Returns 26 bits of a 127-bit number.
uint32_t Limb(BlockKey::Number number, unsigned index) {
  const auto whole = static_cast<unsigned __int128>(number.high) << 64 | number.low;
  return static_cast<uint32_t>(whole >> (kHashLimbBits * index)) & ((1u << kHashLimbBits) - 1);
}

HashKey ForKernel(const BlockKey& key) {
  HashKey out;
  for (unsigned i = 0; i < kHashPieceWords; ++i) {
    for (unsigned j = 0; j < kHashLimbs; ++j) out.limbs[j][i] = Limb(key.Word(i), j);
  }
  for (unsigned n = 0; n <= kHashWarps; ++n) {
    out.powers[n][0] = key.Power(n).low;
    out.powers[n][1] = key.Power(n).high;
  }
  return out;
}

}  // namespace

Status BlockHasher::Load() {
  if (function_ != nullptr) return {};
  if (gpu_.kind().is_hip && gpu_.kind().kernel.empty()) {
    return Fail(Code::kUnimplemented, "there is no kernel that hashes blocks on AMD GPUs yet");
  }
  CUmodule module = nullptr;
  CUresult result = CUDA_SUCCESS;
  if (const std::string_view image = gpu_.kind().kernel; !image.empty()) {
    STASIS_ASSIGN(std::string root, InstallRoot());
    result = gpu_.fn().cuModuleLoad(&module, (root + "/" + std::string(image)).c_str());
  } else {
    result = gpu_.fn().cuModuleLoadData(&module, stasis_block_hashes_ptx);
  }
  CUfunction function = nullptr;
  if (result == CUDA_SUCCESS) {
    result = gpu_.fn().cuModuleGetFunction(&function, module, "stasis_block_hashes");
  }
  if (result == CUDA_SUCCESS) result = Allocate();
  if (result == CUDA_SUCCESS) {
    function_ = function;
    return {};
  }
  if (module != nullptr) gpu_.fn().cuModuleUnload(module);
  // The rest of the driver still works. The mover would exit after an error of the domain kCuda, so
  // change the domain.
  Error error = gpu_.MakeError(result, "cuModuleLoadData");
  if (error.code != Code::kResourceExhausted) error.code = Code::kUnimplemented;
  error.domain = Domain::kStasis;
  error.raw = 0;
  error.WithContext("load the kernel that hashes blocks");
  return Fail(std::move(error));
}

uint64_t BlockHasher::MemoryBytes() const { return kTasksAt + round_blocks_ * sizeof(HashTask); }

// Allocates what is not allocated yet.
CUresult BlockHasher::Allocate() {
  CUresult result = CUDA_SUCCESS;
  auto once = [&](bool there, auto&& make) {
    if (result == CUDA_SUCCESS && !there) result = make();
  };
  const MoverFunctions& fn = gpu_.fn();
  once(stream_ != nullptr, [&] { return fn.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING); });
  once(begin_ != nullptr, [&] { return fn.cuEventCreate(&begin_, CU_EVENT_BLOCKING_SYNC); });
  for (Portion& portion : portions_) {
    once(portion.done != nullptr,
         [&] { return fn.cuEventCreate(&portion.done, CU_EVENT_BLOCKING_SYNC); });
  }
  once(memory_ != 0, [&] { return fn.cuMemAlloc_v2(&memory_, MemoryBytes()); });
  once(tasks_ != nullptr, [&] {
    return fn.cuMemHostAlloc(reinterpret_cast<void**>(&tasks_), round_blocks_ * sizeof(HashTask),
                             0);
  });
  once(results_ != nullptr, [&] {
    return fn.cuMemHostAlloc(reinterpret_cast<void**>(&results_),
                             round_blocks_ * sizeof(HashResult), CU_MEMHOSTALLOC_DEVICEMAP);
  });
  once(results_on_gpu_ != 0,
       [&] { return fn.cuMemHostGetDevicePointer_v2(&results_on_gpu_, results_, 0); });
  return result;
}

Status BlockHasher::Await() {
  STASIS_GPU(gpu_, cuStreamSynchronize, (stream_));
  return {};
}

// The copy must use the kernel's stream. A copy without a stream returns when pageable memory has
// been staged, not when it has arrived, and this stream would not wait for it: the kernel would
// read stale data.
Status BlockHasher::Upload(CUdeviceptr to, const void* from, size_t bytes) {
  STASIS_GPU(gpu_, cuMemcpyHtoDAsync_v2, (to, from, bytes, stream_));
  return {};
}

Status BlockHasher::Prepare(BlockKey key) {
  if (key_ && key_->id() == key.id()) return {};
  STASIS_TRY(Load());
  key_.reset();
  const HashKey table = ForKernel(key);
  STASIS_TRY(Upload(memory_, &table, sizeof table));
  STASIS_TRY(Await());
  key_ = std::move(key);
  return {};
}

Status BlockHasher::Forget() {
  key_.reset();
  hashes_.clear();
  if (memory_ == 0) return {};
  STASIS_GPU(gpu_, cuMemsetD8Async, (memory_, 0, MemoryBytes(), stream_));
  STASIS_TRY(Await());
  if (tasks_ != nullptr) std::memset(tasks_, 0, round_blocks_ * sizeof(HashTask));
  if (results_ != nullptr) std::memset(results_, 0, round_blocks_ * sizeof(HashResult));
  return {};
}

Status BlockHasher::Begin(CUdeviceptr base, std::vector<Block> blocks, size_t first_portion) {
  if (!key_) return Fail(Code::kFailedPrecondition, "the mover has no key to hash blocks with");
  for (const Block& block : blocks) {
    if ((base + block.device_offset) % 16 != 0) {
      return Fail(Code::kInternal, "a block is not aligned to 16 bytes");
    }
  }
  base_ = base;
  blocks_ = std::move(blocks);
  first_portion_ = std::max<size_t>(first_portion, 1);
  round_begin_ = launched_ = awaited_ = 0;
  hashes_.clear();
  elapsed_ns_ = 0;
  return LaunchRound();
}

// The kernel writes hashes directly to host memory, because a copy would wait for gigabytes of
// other copies.
Status BlockHasher::LaunchRound() {
  round_begin_ = hashes_.size();
  launched_ = awaited_ = 0;
  const size_t count = std::min(round_blocks_, blocks_.size() - round_begin_);
  for (size_t i = 0; i < count; ++i) {
    const Block& block = blocks_[round_begin_ + i];
    tasks_[i] = {base_ + block.device_offset, block.bytes};
  }
  STASIS_TRY(Upload(memory_ + kTasksAt, tasks_, count * sizeof(HashTask)));
  STASIS_GPU(gpu_, cuEventRecord, (begin_, stream_));
  size_t size = first_portion_;
  for (size_t done = 0; done < count; done += size, size *= kGrowth) {
    if (size > count - done || launched_ == kPortions - 1) size = count - done;
    CUdeviceptr on_gpu[] = {memory_ + kTasksAt + done * sizeof(HashTask), memory_,
                            results_on_gpu_ + done * sizeof(HashResult)};
    void* arguments[] = {&on_gpu[0], &on_gpu[1], &on_gpu[2]};
    STASIS_GPU(gpu_, cuLaunchKernel,
               (function_, static_cast<unsigned>(size), 1, 1, kHashThreads, 1, 1, 0, stream_,
                arguments, nullptr));
    Portion& portion = portions_[launched_];
    STASIS_GPU(gpu_, cuEventRecord, (portion.done, stream_));
    portion.end = round_begin_ + done + size;
    ++launched_;
  }
  return {};
}

Status BlockHasher::AwaitPortion() {
  if (awaited_ == launched_) STASIS_TRY(LaunchRound());
  const Portion& portion = portions_[awaited_];
  STASIS_GPU(gpu_, cuEventSynchronize, (portion.done));
  ++awaited_;
  while (hashes_.size() < portion.end) {
    hashes_.push_back(Id128::FromRaw(&results_[hashes_.size() - round_begin_]));
  }
  if (awaited_ < launched_) return {};
  float milliseconds = 0;
  STASIS_GPU(gpu_, cuEventElapsedTime, (&milliseconds, begin_, portion.done));
  elapsed_ns_ += static_cast<uint64_t>(double{milliseconds} * 1e6);
  return {};
}

Result<Id128> BlockHasher::HashOf(size_t position) {
  if (position >= blocks_.size()) return Fail(Code::kInternal, "there is no such block");
  while (position >= hashes_.size()) STASIS_TRY(AwaitPortion());
  return hashes_[position];
}

Status BlockHasher::End() {
  blocks_.clear();
  return stream_ == nullptr ? Status{} : Await();
}

Result<BlockHashes> BlockHasher::Hash(CUdeviceptr base, const std::vector<Range>& ranges) {
  const std::vector<Block> blocks = BlocksOf(ranges);
  BlockHashes out;
  out.hashes.resize(blocks.size());
  auto hash_all = [&]() -> Status {
    STASIS_TRY(Begin(base, blocks, round_blocks_));
    for (size_t i = 0; i < blocks.size(); ++i) {
      Id128& hash = out.hashes[blocks[i].index];
      STASIS_ASSIGN(hash, HashOf(i));
      if (hash.IsZero()) out.zero_bytes += blocks[i].bytes;
    }
    return {};
  };
  Status hashed = hash_all();
  Status ended = End();
  STASIS_TRY(std::move(hashed));
  STASIS_TRY(std::move(ended));
  out.elapsed_ns = elapsed_ns_;
  return out;
}

Status BlockHasher::Fill(CUdeviceptr base, uint64_t bytes) {
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

Status BlockHasher::Check(CUdeviceptr base, uint64_t bytes, const std::vector<Id128>& hashes) {
  for (size_t i : {size_t{0}, hashes.size() - 1}) {
    const uint64_t at = i * kBlockBytes;
    std::string block(std::min<uint64_t>(kBlockBytes, bytes - at), '\0');
    STASIS_GPU(gpu_, cuMemcpyDtoH_v2, (block.data(), base + at, block.size()));
    if (hashes[i] != key_->Hash(block)) {
      return Fail(Code::kInternal,
                  "the GPU and the CPU compute different hashes for the same block");
    }
  }
  return {};
}

}  // namespace stasis::dataplane
