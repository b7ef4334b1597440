// A program whose state is only in the globals of modules. The same image is loaded several times
// and in several ways, and every copy must keep its own values.
#include <array>

#include "common/arithmetic.h"
#include "common/gpu.h"

namespace workloads {
namespace {

constexpr uint32_t kWeights = 16;
constexpr uint32_t kTable = 4096;

// One loaded copy and the expected values of its globals.
struct Copy {
  CUmodule module = nullptr;
  CUlibrary library = nullptr;
  CUfunction turn = nullptr;
  Global launches{}, table{}, primes{}, weights{};

  uint32_t expected_launches = 0;
  std::vector<uint32_t> expected_table = std::vector<uint32_t>(kTable);
  std::vector<uint32_t> expected_primes = {2, 3, 5, 7, 11, 13, 17, 19};
  std::vector<uint32_t> expected_weights;
};

std::vector<uint32_t> Read(const Global& global) {
  std::vector<uint32_t> words(global.bytes / sizeof(uint32_t));
  CU(cuMemcpyDtoH(words.data(), global.address, global.bytes));
  return words;
}

class Globals : public Workload {
 public:
  void SetUp(const Options& options) override {
    OpenGpu(options);
    const std::string image = ReadFile(ImagePath());
    CU(cuModuleLoad(&copies_[0].module, ImagePath().c_str()));
    CU(cuModuleLoadData(&copies_[1].module, image.data()));
    CU(cuModuleLoadDataEx(&copies_[2].module, image.data(), 0, nullptr, nullptr));
    CU(cuLibraryLoadData(&copies_[3].library, image.data(), nullptr, nullptr, 0, nullptr, nullptr,
                         0));
    CU(cuLibraryGetModule(&copies_[3].module, copies_[3].library));
    for (uint32_t c = 0; c < kCopies; ++c) SetUp(c);
  }

  uint64_t Round(uint64_t round) override {
    const auto salt = static_cast<uint32_t>(round);
    uint64_t sum = 0;
    for (Copy& copy : copies_) {
      // Launch only one thread, because the kernel reads `primes` and then changes it.
      Launch(copy.turn, {1, 1}, nullptr, salt);
      for (uint32_t i = 0; i < kTable; ++i) {
        copy.expected_table[i] = Step(copy.expected_table[i] + copy.expected_primes[i % 8],
                                      copy.expected_weights[i % kWeights], i, salt);
      }
      copy.expected_primes[salt % 8] += ++copy.expected_launches;
      sum = Mix64(sum) + Compare(copy);
    }
    return sum;
  }

  void Verify() override {
    for (Copy& copy : copies_) Compare(copy);
    VerifyBallast();
  }

  void Sabotage() override { FlipByte(copies_[1].weights.address + 8); }

  void TearDown() override {
    for (Copy& copy : copies_) {
      if (copy.library != nullptr) {
        CU(cuLibraryUnload(copy.library));
      } else {
        CU(cuModuleUnload(copy.module));
      }
    }
    CloseGpu();
  }

 private:
  static constexpr uint32_t kCopies = 4;

  void SetUp(uint32_t c) {
    Copy& copy = copies_[c];
    copy.turn = Function(copy.module, "turn");
    copy.launches = FindGlobal(copy.module, "launches");
    copy.table = FindGlobal(copy.module, "table");
    copy.primes = FindGlobal(copy.module, "primes");
    copy.weights = FindGlobal(copy.module, "weights");
    if (copy.table.bytes != kTable * sizeof(uint32_t)) {
      Fail("the global `table` has %zu bytes", copy.table.bytes);
    }
    copy.expected_weights = RandomWords(400 + c, kWeights);
    CU(cuMemcpyHtoD(copy.weights.address, copy.expected_weights.data(), copy.weights.bytes));
  }

  uint64_t Compare(const Copy& copy) {
    const std::vector<uint32_t> table = Read(copy.table);
    workloads::Compare("the table", table, copy.expected_table);
    workloads::Compare("the primes", Read(copy.primes), copy.expected_primes);
    workloads::Compare("the constants", Read(copy.weights), copy.expected_weights);
    workloads::Compare("the launches", Read(copy.launches), {copy.expected_launches});
    return Checksum(table);
  }

  std::array<Copy, kCopies> copies_;
};

}  // namespace
}  // namespace workloads

int main(int argc, char** argv) {
  const workloads::Options options = workloads::Begin(argc, argv);
  workloads::Globals globals;
  workloads::Run(globals, options);
}
