// drift --memory SIZE --allocation SIZE --port N: device memory of which one percent changes.
//
// - The last percent of --memory is rewritten every round, always the same part. Half of the words
//   are small numbers, so that the data can be compressed.
// - --port distinguishes programs: two of them have equal memory except for the changing part.
// - --allocation is a buffer of zeros that is never written, except for one byte in its middle at
//   SIGUSR2, which also changes one byte at the start of --memory.
// - With --handles N all of --memory changes, in N parts that take turns: each is rewritten for a
//   few rounds and then stays unchanged for N - 1 turns.
#include <csignal>
#include <vector>

#include "common/arithmetic.h"
#include "common/gpu.h"

namespace workloads {
namespace {

constexpr uint64_t kSeed = 0xd21f7;
constexpr uint64_t kTurn = 20;  // rounds

volatile std::sig_atomic_t asked = 0;

class Drift : public Workload {
 public:
  void SetUp(const Options& options) override {
    Options without_ballast = options;
    without_ballast.memory_bytes = 0;
    std::signal(SIGUSR2, [](int) { asked = 1; });
    OpenGpu(without_ballast);
    salt_ = static_cast<uint64_t>(options.port) << 32;
    words_ = options.memory_bytes / sizeof(uint64_t);
    fixed_ = words_ - words_ / 100;
    parts_ = static_cast<uint64_t>(options.handles);
    CU(cuMemAlloc(&memory_, words_ * sizeof(uint64_t)));
    const std::vector<uint64_t> all = Words(0, words_);
    CU(cuMemcpyHtoD(memory_, all.data(), all.size() * sizeof(uint64_t)));
    zeros_ = options.allocation_bytes;
    if (zeros_ == 0) return;
    CU(cuMemAlloc(&buffer_, zeros_));
    const std::vector<char> zeros(zeros_);
    CU(cuMemcpyHtoD(buffer_, zeros.data(), zeros_));
  }

  uint64_t Round(uint64_t round) override {
    round_ = round;
    if (asked != 0 && !poked_) {
      poked_ = true;
      CU(cuMemsetD8_v2(buffer_ + zeros_ / 2, 1, 1));
      FlipByte(memory_);
    }
    uint64_t first = fixed_;
    uint64_t end = words_;
    if (parts_ > 0) {
      first = round / kTurn % parts_ * (words_ / parts_);
      end = first + words_ / parts_;
    }
    const std::vector<uint64_t> changed = Words(first, end);
    CU(cuMemcpyHtoD(memory_ + first * sizeof(uint64_t), changed.data(),
                    changed.size() * sizeof(uint64_t)));
    return changed[0];
  }

  void Verify() override {
    std::vector<uint64_t> found(words_);
    CU(cuMemcpyDtoH(found.data(), memory_, words_ * sizeof(uint64_t)));
    if (poked_) reinterpret_cast<unsigned char&>(found[0]) ^= 0x40;
    if (found != Words(0, words_)) Fail("the memory is not what it was");
    if (zeros_ == 0) return;
    std::vector<char> zeros(zeros_, 'x');
    CU(cuMemcpyDtoH(zeros.data(), buffer_, zeros_));
    for (uint64_t i = 0; i < zeros_; ++i) {
      const char expected = poked_ && i == zeros_ / 2 ? 1 : 0;
      if (zeros[i] != expected) Fail("the buffer of zeros has something else in it");
    }
  }

  void Sabotage() override { FlipByte(memory_); }

  void TearDown() override {
    CU(cuMemFree(memory_));
    if (zeros_ > 0) CU(cuMemFree(buffer_));
    CloseGpu();
  }

 private:
  // Returns the expected content from word `first` on. It is computed, because a copy in host
  // memory would be dumped too.
  std::vector<uint64_t> Words(uint64_t first, uint64_t end) const {
    std::vector<uint64_t> words(end - first);
    for (uint64_t i = first; i < end; ++i) {
      const uint64_t word = RandomWord(SeedOf(i), i);
      words[i - first] = i % 2 == 0 ? word : word % 100;
    }
    return words;
  }

  // Returns the seed of the round in which this word was last written.
  uint64_t SeedOf(uint64_t word) const {
    if (parts_ == 0) return word < fixed_ ? kSeed : kSeed + salt_ + round_;
    const uint64_t part = word / (words_ / parts_);
    const uint64_t turn = round_ / kTurn;
    const uint64_t ago = (turn + parts_ - part % parts_) % parts_;
    if (part >= parts_ || ago > turn)
      return kSeed;  // not yet written, or the remainder of the
                     // division
    return kSeed + salt_ + 1 + (ago == 0 ? round_ : (turn - ago + 1) * kTurn - 1);
  }

  uint64_t words_ = 0;
  uint64_t parts_ = 0;  // number of parts that take turns; 0: the last percent changes
  uint64_t fixed_ = 0;  // number of words that never change
  uint64_t round_ = 0;
  uint64_t salt_ = 0;
  uint64_t zeros_ = 0;
  bool poked_ = false;
  CUdeviceptr memory_ = 0;
  CUdeviceptr buffer_ = 0;
};

}  // namespace
}  // namespace workloads

int main(int argc, char** argv) {
  const workloads::Options options = workloads::Begin(argc, argv);
  workloads::Drift drift;
  workloads::Run(drift, options);
}
