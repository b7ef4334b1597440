// heap --memory SIZE [--allocation SIZE] [--port N] [--handles 1]: CPU memory of which one percent
// changes, without a GPU. One in a hundred pages of --memory is rewritten every round, always the
// same ones.
// --port distinguishes programs: two of them have equal memory except for the changing pages.
// --allocation is memory that was written with zeros. With --handles 1 a child would not inherit
// the memory; a restore leaves such memory to CRIU.
#include <sys/mman.h>

#include <cstring>

#include "common/arithmetic.h"
#include "common/protocol.h"

namespace workloads {
namespace {

constexpr uint64_t kSeed = 0x4ea9;
constexpr uint64_t kPageWords = 4096 / sizeof(uint64_t);
constexpr uint64_t kChanging = 100;  // one in this many pages

uint64_t* Map(uint64_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) Fail("there is no memory");
  return static_cast<uint64_t*>(memory);
}

class Heap : public Workload {
 public:
  void SetUp(const Options& options) override {
    salt_ = static_cast<uint64_t>(options.port) << 32;
    words_ = options.memory_bytes / sizeof(uint64_t);
    memory_ = Map(words_ * sizeof(uint64_t));
    if (options.handles > 0 && ::madvise(memory_, words_ * sizeof(uint64_t), MADV_DONTFORK) != 0) {
      Fail("madvise fails");
    }
    for (uint64_t i = 0; i < words_; ++i) memory_[i] = Word(i);
    zeros_ = options.allocation_bytes / sizeof(uint64_t);
    if (zeros_ == 0) return;
    zero_memory_ = Map(zeros_ * sizeof(uint64_t));
    std::memset(zero_memory_, 1, zeros_ * sizeof(uint64_t));
    std::memset(zero_memory_, 0, zeros_ * sizeof(uint64_t));
  }

  uint64_t Round(uint64_t round) override {
    round_ = round;
    for (uint64_t page = 0; page < words_; page += kChanging * kPageWords) {
      for (uint64_t i = page; i < page + kPageWords; ++i) memory_[i] = Word(i);
    }
    return memory_[0];
  }

  void Verify() override {
    for (uint64_t i = 0; i < words_; ++i) {
      if (memory_[i] != Word(i)) Fail("the memory is not what it was");
    }
    for (uint64_t i = 0; i < zeros_; ++i) {
      if (zero_memory_[i] != 0) Fail("what was zero is not");
    }
  }

  void Sabotage() override { memory_[words_ / 2] ^= 1; }
  void TearDown() override {
    ::munmap(memory_, words_ * sizeof(uint64_t));
    if (zeros_ > 0) ::munmap(zero_memory_, zeros_ * sizeof(uint64_t));
  }

 private:
  uint64_t Word(uint64_t i) const {
    const bool changes = i / kPageWords % kChanging == 0;
    return RandomWord(changes && round_ > 0 ? kSeed + salt_ + round_ : kSeed, i);
  }

  uint64_t words_ = 0;
  uint64_t zeros_ = 0;
  uint64_t round_ = 0;
  uint64_t salt_ = 0;
  uint64_t* memory_ = nullptr;
  uint64_t* zero_memory_ = nullptr;
};

}  // namespace
}  // namespace workloads

int main(int argc, char** argv) {
  const workloads::Options options = workloads::Begin(argc, argv);
  workloads::Heap heap;
  workloads::Run(heap, options);
}
