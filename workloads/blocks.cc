// Large memory in allocations of one size. The program overwrites it every round and verifies it on
// the GPU. `stasis bench` measures this program. With --commands it reads commands from standard
// input, one per line:
//
//   fill     fills all memory with other random words     FILLED
//   verify   compares all memory with the words written   OK <checksum>, or BAD <wrong words>
//   (end)    verifies once more and exits                 EXIT-SUCCESS
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "common/gpu.h"

namespace workloads {
namespace {

constexpr uint64_t kSeed = 0xb10c5;
constexpr uint64_t kDefaultBytes = 5ull << 20;
constexpr uint64_t kDefaultAllocation = 1ull << 20;

class Blocks : public Workload {
 public:
  void SetUp(const Options& options) override {
    Options without_ballast = options;
    without_ballast.memory_bytes = 0;
    OpenGpu(without_ballast);
    module_ = LoadModule();
    fill_ = Function(module_, "fill");
    check_ = Function(module_, "check");
    uint64_t bytes = options.memory_bytes;
    // With --commands, a size of 0 is allowed: the program then has only a context.
    if (bytes == 0 && !options.commands) bytes = kDefaultBytes;
    const uint64_t each =
        options.allocation_bytes == 0 ? kDefaultAllocation : options.allocation_bytes;
    for (uint64_t left = bytes / sizeof(uint64_t); left > 0;) {
      const uint64_t words = std::min(left, std::max<uint64_t>(each / sizeof(uint64_t), 1));
      blocks_.emplace_back(words);
      left -= words;
    }
    if (!blocks_.empty()) found_ = DeviceArray<uint64_t>(2);
    Fill();
  }

  void Fill() {
    ++seed_;
    uint64_t first = 0;
    for (const auto& block : blocks_) {
      const uint64_t words = block.count();
      Launch(fill_, GridFor(words), nullptr, block.address(), words, first, seed_);
      first += words;
    }
    CU(cuCtxSynchronize());
  }

  // Returns the number of wrong words.
  uint64_t Check(uint64_t* checksum) {
    *checksum = 0;
    if (blocks_.empty()) return 0;
    uint64_t found[2] = {};
    CU(cuMemcpyHtoD(found_.address(), found, sizeof found));
    uint64_t first = 0;
    for (const auto& block : blocks_) {
      const uint64_t words = block.count();
      Launch(check_, GridFor(words), nullptr, block.address(), words, first, seed_,
             found_.address());
      first += words;
    }
    CU(cuMemcpyDtoH(found, found_.address(), sizeof found));
    *checksum = found[0];
    return found[1];
  }

  uint64_t Round(uint64_t) override {
    Fill();
    uint64_t checksum = 0;
    if (const uint64_t wrong = Check(&checksum); wrong > 0) FailOver(wrong);
    return checksum;
  }

  void Verify() override {
    uint64_t checksum = 0;
    if (const uint64_t wrong = Check(&checksum); wrong > 0) FailOver(wrong);
  }

  void Sabotage() override {
    if (blocks_.empty()) Fail("--sabotage needs memory to damage, and there is none");
    FlipByte(blocks_.back().address() + blocks_.back().bytes() - 1);
  }

  void TearDown() override {
    for (auto& block : blocks_) block.Free();
    if (!blocks_.empty()) found_.Free();
    CU(cuModuleUnload(module_));
    CloseGpu();
  }

 private:
  [[noreturn]] static void FailOver(uint64_t wrong) {
    Fail("%llu words differ from those that were written", static_cast<unsigned long long>(wrong));
  }

  CUmodule module_ = nullptr;
  CUfunction fill_ = nullptr;
  CUfunction check_ = nullptr;
  std::vector<DeviceArray<uint64_t>> blocks_;
  DeviceArray<uint64_t> found_;  // checksum, number of wrong words
  uint64_t seed_ = kSeed;
};

void Obey(Blocks& blocks, const std::string& command) {
  if (command == "fill") {
    blocks.Fill();
    puts("FILLED");
  } else if (command == "verify") {
    uint64_t checksum = 0;
    const uint64_t wrong = blocks.Check(&checksum);
    if (wrong == 0) {
      printf("OK %016llx\n", static_cast<unsigned long long>(checksum));
    } else {
      printf("BAD %llu\n", static_cast<unsigned long long>(wrong));
    }
  } else {
    Fail("'%s' is not a command; the commands are fill and verify", command.c_str());
  }
}

[[noreturn]] void RunCommands(Blocks& blocks, const Options& options) {
  blocks.SetUp(options);
  PrintReady();
  std::string pending;
  while (Wait(-1, STDIN_FILENO) == Wake::kReadable) {
    char part[256];
    const ssize_t length = read(STDIN_FILENO, part, sizeof part);
    if (length <= 0) break;
    pending.append(part, static_cast<size_t>(length));
    for (size_t end; (end = pending.find('\n')) != std::string::npos;) {
      Obey(blocks, pending.substr(0, end));
      pending.erase(0, end + 1);
    }
  }
  Finish(blocks, options);
}

}  // namespace
}  // namespace workloads

int main(int argc, char** argv) {
  const workloads::Options options = workloads::Begin(argc, argv);
  workloads::Blocks blocks;
  if (options.commands) workloads::RunCommands(blocks, options);
  workloads::Run(blocks, options);
}
