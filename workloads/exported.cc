// Two programs that share memory as NCCL does: one exports handles as files, and the other imports
// them (common/pair.h). There are three pieces of memory. The child keeps only the mapping of the
// first. The child frees the second as soon as the parent has it. The parent keeps the file of the
// third and imports it again in each round.
#include <stdint.h>
#include <unistd.h>

#include "common/arithmetic.h"
#include "common/mapped.h"
#include "common/pair.h"

namespace workloads {
namespace {

constexpr uint64_t kLeftSeed = 970, kAgainSeed = 980;
constexpr uint32_t kLeftWords = (2u << 20) / sizeof(uint32_t);

void CompareWith(const char* what, const Mapped& mapped, const std::vector<uint32_t>& expected) {
  std::vector<uint32_t> found(expected.size());
  CU(cuMemcpyDtoH(found.data(), mapped.address(), found.size() * sizeof(uint32_t)));
  Compare(what, found, expected);
}

class Exported : public Sharing {
 public:
  CUdeviceptr Give(const Options& options, const std::vector<uint32_t>& words,
                   int socket) override {
    main_ = Make(words, options.device, socket);
    main_.LetGoOfHandle();
    left_ = Make(RandomWords(kLeftSeed, kLeftWords), options.device, socket);
    again_ = Make(RandomWords(kAgainSeed, kLeftWords), options.device, socket);
    char has_it = 0;
    if (!ReadAll(socket, &has_it, 1)) _exit(1);
    left_.Unmap();
    left_.LetGoOfHandle();
    WriteAll(socket, &has_it, 1);
    return main_.address();
  }
  void Free() override {
    main_.Unmap();
    again_.Unmap();
    again_.LetGoOfHandle();
  }

  CUdeviceptr Open(const Options& options, int socket) override {
    main_ = Import(options.device, socket);
    left_ = Import(options.device, socket);
    file_.Receive(socket);
    device_ = options.device;
    char has_it = 1;
    WriteAll(socket, &has_it, 1);
    if (!ReadAll(socket, &has_it, 1)) Fail("the child did not start");
    module_ = LoadModule("step");
    step_ = Function(module_, "step_in_place");
    expected_ = RandomWords(kLeftSeed, kLeftWords);
    return main_.address();
  }
  void Round(uint64_t round) override {
    const auto salt = static_cast<uint32_t>(round);
    Launch(step_, GridFor(kLeftWords), nullptr, left_.address(), kLeftWords, salt);
    StepInPlace(expected_, salt);
    Verify();
    again_ = file_.Import(device_);
    CompareWith("memory that was imported again", again_, RandomWords(kAgainSeed, kLeftWords));
    again_.Unmap();
    again_.LetGoOfHandle();
  }
  void Verify() override { CompareWith("memory that the child has freed", left_, expected_); }
  void Close() override {
    CU(cuModuleUnload(module_));
    for (Mapped* mapped : {&main_, &left_}) {
      mapped->Unmap();
      mapped->LetGoOfHandle();
    }
  }

 private:
  Mapped main_, left_, again_;
  File file_;
  int device_ = 0;
  CUmodule module_ = nullptr;
  CUfunction step_ = nullptr;
  std::vector<uint32_t> expected_;
};

}  // namespace
}  // namespace workloads

int main(int argc, char** argv) {
  return workloads::SharingMain(argc, argv, std::make_unique<workloads::Exported>());
}
