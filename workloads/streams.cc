// Streams that depend on each other through events, with host functions and asynchronous copies.
// Work is enqueued several rounds ahead of the round that is printed. One more stream is never
// idle, so a checkpoint always finds work in flight.
#include <string.h>
#include <time.h>

#include <array>
#include <atomic>

#include "common/arithmetic.h"
#include "common/gpu.h"

namespace workloads {
namespace {

constexpr uint32_t kStreams = 4;
constexpr uint32_t kAhead = 3;  // rounds enqueued at the same time
constexpr uint32_t kCount = 16 * 1024 + 5;
constexpr uint32_t kPasses = 16;
constexpr size_t kBytes = kCount * sizeof(uint32_t);

uint32_t* PinnedWords() {
  void* memory = nullptr;
  CU(cuMemAllocHost(&memory, kBytes));
  return static_cast<uint32_t*>(memory);
}

CUstream NewStream() {
  CUstream stream = nullptr;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  return stream;
}

CUevent NewEvent() {
  CUevent event = nullptr;
  CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  return event;
}

// Endless round trips of data: a copy to the GPU, and a copy back. Each trip ends with a host
// function that verifies the data and sleeps briefly, so that the queue never runs empty.
class Traffic {
 public:
  void Start() {
    stream_ = NewStream();
    device_ = DeviceArray<uint32_t>(kCount);
    for (Trip& trip : trips_) {
      trip.out = PinnedWords();
      trip.back = PinnedWords();
      trip.done = NewEvent();
      Enqueue(trip);
    }
  }

  // Starts each finished round trip again. Called between rounds.
  void Refill() {
    for (Trip& trip : trips_) {
      if (cuEventQuery(trip.done) == CUDA_SUCCESS) Enqueue(trip);
    }
  }

  void Stop() {
    CU(cuStreamSynchronize(stream_));
    for (Trip& trip : trips_) {
      CU(cuMemFreeHost(trip.out));
      CU(cuMemFreeHost(trip.back));
      CU(cuEventDestroy(trip.done));
    }
    device_.Free();
    CU(cuStreamDestroy(stream_));
  }

 private:
  struct Trip {
    uint32_t* out = nullptr;
    uint32_t* back = nullptr;
    CUevent done = nullptr;
    uint64_t seed = 0;
  };

  void Enqueue(Trip& trip) {
    trip.seed = ++seed_;
    for (uint32_t i = 0; i < kCount; ++i) trip.out[i] = RandomWord32(trip.seed, i);
    memset(trip.back, 0, kBytes);
    CU(cuMemcpyHtoDAsync(device_.address(), trip.out, kBytes, stream_));
    CU(cuMemcpyDtoHAsync(trip.back, device_.address(), kBytes, stream_));
    CU(cuLaunchHostFunc(stream_, &Traffic::Arrived, &trip));
    CU(cuEventRecord(trip.done, stream_));
  }

  static void Arrived(void* argument) {
    const Trip& trip = *static_cast<Trip*>(argument);
    Compare("data copied to the GPU and back", trip.back, trip.out, kCount);
    const timespec rest{0, 15000000};
    nanosleep(&rest, nullptr);
  }

  CUstream stream_ = nullptr;
  DeviceArray<uint32_t> device_;
  std::array<Trip, 8> trips_;
  uint64_t seed_ = 0x7ea;
};

// One round of one stream in flight, with its own staging memory and the checksum that its host
// function computes.
struct Slot {
  uint32_t* in = nullptr;
  uint32_t* out = nullptr;
  CUevent mixed = nullptr;   // this stream's buffer contains this round
  CUevent copied = nullptr;  // the whole round has finished, including the host function
  DeviceArray<uint32_t> staged;
  std::atomic<uint64_t> checksum{0};
};

struct Lane {
  CUstream stream = nullptr;
  DeviceArray<uint32_t> buffer;
  std::array<Slot, kAhead> slots;
  std::vector<uint32_t> expected;
};

class Streams : public Workload {
 public:
  void SetUp(const Options& options) override {
    OpenGpu(options);
    rounds_ = options.rounds;
    module_ = LoadModule();
    mix_ = Function(module_, "mix");
    for (uint32_t s = 0; s < kStreams; ++s) {
      Lane& lane = lanes_[s];
      lane.stream = NewStream();
      lane.expected = RandomWords(100 + s, kCount);
      lane.buffer = DeviceArray<uint32_t>(lane.expected);
      for (Slot& slot : lane.slots) {
        slot.in = PinnedWords();
        slot.out = PinnedWords();
        slot.staged = DeviceArray<uint32_t>(kCount);
        slot.mixed = NewEvent();
        slot.copied = NewEvent();
      }
    }
    traffic_.Start();
  }

  uint64_t Round(uint64_t round) override {
    traffic_.Refill();
    while (enqueued_ < round + kAhead - 1 && (rounds_ == 0 || enqueued_ < rounds_)) {
      Enqueue(++enqueued_);
    }
    printed_ = round;
    return Collect(round);
  }

  void Verify() override {
    for (uint64_t round = printed_ + 1; round <= enqueued_; ++round) Collect(round);
    CU(cuCtxSynchronize());
    for (Lane& lane : lanes_) Compare("a stream's buffer", lane.buffer.Read(), lane.expected);
    VerifyBallast();
  }

  void Sabotage() override { FlipByte(lanes_[2].buffer.address() + 17); }

  void TearDown() override {
    traffic_.Stop();
    for (Lane& lane : lanes_) {
      for (Slot& slot : lane.slots) {
        CU(cuMemFreeHost(slot.in));
        CU(cuMemFreeHost(slot.out));
        slot.staged.Free();
        CU(cuEventDestroy(slot.mixed));
        CU(cuEventDestroy(slot.copied));
      }
      lane.buffer.Free();
      CU(cuStreamDestroy(lane.stream));
    }
    CU(cuModuleUnload(module_));
    CloseGpu();
  }

 private:
  Slot& SlotOf(uint32_t s, uint64_t round) { return lanes_[s].slots[round % kAhead]; }

  // Stream s reads the buffer of the previous stream after that stream's step of the same round,
  // and before that stream's step of the next round.
  void Enqueue(uint64_t round) {
    for (uint32_t s = 0; s < kStreams; ++s) {
      Lane& lane = lanes_[s];
      Slot& slot = SlotOf(s, round);
      for (uint32_t i = 0; i < kCount; ++i) slot.in[i] = RandomWord32(round * kStreams + s, i);
      CU(cuMemcpyHtoDAsync(slot.staged.address(), slot.in, kBytes, lane.stream));
      if (s > 0) CU(cuStreamWaitEvent(lane.stream, SlotOf(s - 1, round).mixed, 0));
      if (s + 1 < kStreams && round > 1) {
        CU(cuStreamWaitEvent(lane.stream, SlotOf(s + 1, round - 1).mixed, 0));
      }
      // Stream 0 reads only its own buffer, to break the cycle.
      const CUdeviceptr before = lanes_[s > 0 ? s - 1 : 0].buffer.address();
      Launch(mix_, GridFor(kCount), lane.stream, lane.buffer.address(), slot.staged.address(),
             before, kCount, kPasses);
      CU(cuEventRecord(slot.mixed, lane.stream));
      CU(cuMemcpyDtoHAsync(slot.out, lane.buffer.address(), kBytes, lane.stream));
      CU(cuLaunchHostFunc(lane.stream, &Streams::Arrived, &slot));
      CU(cuEventRecord(slot.copied, lane.stream));
    }
  }

  static void Arrived(void* argument) {
    Slot& slot = *static_cast<Slot*>(argument);
    slot.checksum = Checksum(slot.out, kCount);
  }

  // Waits for a round and compares it with the same computation on the host.
  uint64_t Collect(uint64_t round) {
    uint64_t sum = 0;
    for (uint32_t s = 0; s < kStreams; ++s) {
      Slot& slot = SlotOf(s, round);
      CU(cuEventSynchronize(slot.copied));
      Lane& lane = lanes_[s];
      const std::vector<uint32_t>& before = lanes_[s > 0 ? s - 1 : 0].expected;
      for (uint32_t i = 0; i < kCount; ++i) {
        uint32_t x = lane.expected[i] ^ RandomWord32(round * kStreams + s, i);
        // Stream 0 mixes with the value that it is about to replace.
        const uint32_t other = before[i];
        for (uint32_t pass = 0; pass < kPasses; ++pass) x = Step(x, other, i, pass);
        lane.expected[i] = x;
      }
      Compare("a stream's result", slot.out, lane.expected.data(), kCount);
      if (slot.checksum != Checksum(lane.expected)) Fail("a host function read wrong data");
      sum = Mix64(sum) + slot.checksum;
    }
    return sum;
  }

  uint64_t rounds_ = 0;
  uint64_t enqueued_ = 0;
  uint64_t printed_ = 0;
  CUmodule module_ = nullptr;
  CUfunction mix_ = nullptr;
  std::array<Lane, kStreams> lanes_;
  Traffic traffic_;
};

}  // namespace
}  // namespace workloads

int main(int argc, char** argv) {
  const workloads::Options options = workloads::Begin(argc, argv);
  workloads::Streams streams;
  workloads::Run(streams, options);
}
