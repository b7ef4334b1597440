// A tree (common/family.h) in which each child shares memory with the next one on its GPU, and the
// last with the first. CUDA IPC and exported handles alternate, so every child exports memory one
// way and imports it the other way. In each round all children change their exported memory, then
// their imported memory. With two GPUs there are two such rings; --children must be a multiple of
// --devices.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>

#include "common/arithmetic.h"
#include "common/family.h"
#include "common/ipc.h"
#include "common/mapped.h"
#include "common/steady.h"

namespace workloads {
namespace {

// Descriptors of sockets in the child, for the memory that it exports and the memory that it
// imports.
constexpr int kGiveFd = 3, kTakeFd = 4;
constexpr int kOutOfTheWay = 100;
constexpr uint64_t kSeed = 1100;
// These words change each round; the other words are compared at the end.
constexpr uint32_t kChangedWords = 64 * 1024;
// Requests of the parent: to do the two halves of a round, and to close imported memory before its
// owner frees it.
constexpr uint64_t kTheirs = uint64_t{1} << 62, kClose = uint64_t{1} << 63;

uint32_t TakersSalt(uint64_t round) { return static_cast<uint32_t>(round) + 1000; }

class Handle : public Sharing {
 public:
  CUdeviceptr Give(const Options& options, const std::vector<uint32_t>& words,
                   int socket) override {
    memory_ = Make(words, options.device, socket);
    return memory_.address();
  }
  void Free() override { Close(); }
  CUdeviceptr Open(const Options& options, int socket) override {
    memory_ = Import(options.device, socket);
    return memory_.address();
  }
  void Close() override {
    memory_.Unmap();
    memory_.LetGoOfHandle();
  }

 private:
  Mapped memory_;
};

std::unique_ptr<Sharing> WayOf(int child, const Options& options) {
  if (child / options.devices % 2 == 0) return std::make_unique<Ipc>();
  return std::make_unique<Handle>();
}

// One side's view of shared memory, and its expected content.
struct Piece {
  std::unique_ptr<Sharing> way;
  CUdeviceptr address = 0;
  std::vector<uint32_t> expected;

  void Start(int child) { expected = RandomWords(kSeed + child, kSharedWords); }
  void Change(CUfunction step, uint32_t salt) {
    Launch(step, GridFor(kChangedWords), nullptr, address, kChangedWords, salt);
    CU(cuStreamSynchronize(nullptr));
    Expect(salt);
  }
  void Expect(uint32_t salt) {
    std::vector<uint32_t> changed(expected.begin(), expected.begin() + kChangedWords);
    StepInPlace(changed, salt);
    std::copy(changed.begin(), changed.end(), expected.begin());
  }
  void Look(const char* what, size_t words) const {
    std::vector<uint32_t> found(words);
    CU(cuMemcpyDtoH(found.data(), address, words * sizeof(uint32_t)));
    Compare(what, found, {expected.begin(), expected.begin() + static_cast<ptrdiff_t>(words)});
  }
};

class Member : public Steady {
 public:
  explicit Member(int child) : Steady(1000 + static_cast<uint64_t>(child)) {}

  void SetUp(const Options& options) override {
    Steady::SetUp(options);
    module_ = LoadModule("step");
    step_ = Function(module_, "step_in_place");
    const int self = options.child - 1;
    const int giver = (self + options.children - options.devices) % options.children;
    own_.way = WayOf(self, options);
    own_.Start(self);
    own_.address = own_.way->Give(options, own_.expected, kGiveFd);
    got_.way = WayOf(giver, options);
    got_.Start(giver);
    got_.address = got_.way->Open(options, kTakeFd);
    close(kGiveFd);
    close(kTakeFd);
  }

  uint64_t Round(uint64_t word) override {
    if (word == kClose) {
      got_.Look("memory of another child", kSharedWords);
      got_.way->Close();
      closed_ = true;
      return 0;
    }
    const uint64_t round = word & ~kTheirs;
    const auto salt = static_cast<uint32_t>(round);
    if ((word & kTheirs) == 0) {
      own_.Look("memory shared with another child", kChangedWords);
      own_.Change(step_, salt);
      return Steady::Round(round);
    }
    got_.Expect(salt);
    got_.Look("memory of another child", kChangedWords);
    got_.Change(step_, TakersSalt(round));
    own_.Expect(TakersSalt(round));
    return Checksum(got_.expected);
  }

  void Verify() override {
    // Not checked if the parent has died, because it may have died between the two halves of a
    // round.
    if (closed_) own_.Look("memory shared with another child", kSharedWords);
    Steady::Verify();
  }

  void Sabotage() override { FlipByte(own_.address + 4321); }

  void TearDown() override {
    own_.way->Free();
    CU(cuModuleUnload(module_));
    Steady::TearDown();
  }

 private:
  CUmodule module_ = nullptr;
  CUfunction step_ = nullptr;
  Piece own_, got_;
  bool closed_ = false;
};

class Ring : public Family {
 public:
  void SetUp(const Options& options) override {
    if (options.children % options.devices != 0) Fail("--children must be a multiple of --devices");
    devices_ = options.devices;
    links_.resize(options.children);
    for (Link& link : links_) {
      if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, link.ends) != 0) Fail("socketpair");
    }
    Family::SetUp(options);
    for (Link& link : links_) {
      for (int end : link.ends) close(end);
    }
  }

  uint64_t Round(uint64_t round) override {
    const uint64_t sum = Ask(round);
    return Mix64(sum) + Ask(round | kTheirs);
  }

  void Verify() override {
    Ask(kClose);
    Family::Verify();
  }

 private:
  struct Link {
    int ends[2];
  };

  void Equip(int child) override {
    const auto count = static_cast<int>(links_.size());
    const int giver = (child + count - devices_) % count;
    const int give = fcntl(links_[child].ends[0], F_DUPFD_CLOEXEC, kOutOfTheWay);
    const int take = fcntl(links_[giver].ends[1], F_DUPFD_CLOEXEC, kOutOfTheWay);
    dup2(give, kGiveFd);
    dup2(take, kTakeFd);
  }

  int devices_ = 1;
  std::vector<Link> links_;  // links_[i] connects child i with the next one
};

}  // namespace
}  // namespace workloads

int main(int argc, char** argv) {
  const workloads::Options options = workloads::Begin(argc, argv);
  if (options.child > 0) {
    workloads::Member member(options.child);
    workloads::LiveAsChild(options, member);
  }
  workloads::Ring ring;
  workloads::Run(ring, options);
}
