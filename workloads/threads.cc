// Host threads: some share one context, and two have a context of their own. Each thread has its
// own stream and buffers. It allocates, computes, verifies and frees all the time, even between
// rounds.
#include <time.h>

#include <array>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "common/arithmetic.h"
#include "common/gpu.h"

namespace workloads {
namespace {

constexpr uint32_t kThreads = 4;
constexpr uint32_t kInOwnContext = 2;  // the last two threads
constexpr uint32_t kCount = 8 * 1024 + 3;

// Commands to the threads, and their answers.
struct Board {
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t round = 0;
  bool stop = false;
  std::array<uint64_t, kThreads> finished_round{};
  std::array<uint64_t, kThreads> checksum{};
};

class Worker {
 public:
  Worker(uint32_t index, Board& board) : index_(index), board_(board) {}

  void Start() {
    thread_ = std::thread([this] { Live(); });
  }
  void Join() { thread_.join(); }

  CUdeviceptr lasting() const { return lasting_.address(); }

 private:
  void Live() {
    CUcontext context = PrimaryContext();
    if (index_ >= kThreads - kInOwnContext) {
      CU(cuCtxCreate(&context, 0, Device()));
    }
    CU(cuCtxSetCurrent(context));
    CU(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
    module_ = LoadModule("step");
    step_ = Function(module_, "step_in_place");
    expected_ = RandomWords(500 + index_, kCount);
    lasting_ = DeviceArray<uint32_t>(expected_);

    for (uint64_t round = 0; Next(round);) {
    }
    Compare("a thread's long-lived buffer", lasting_.Read(), expected_);

    lasting_.Free();
    CU(cuModuleUnload(module_));
    CU(cuStreamDestroy(stream_));
    if (context != PrimaryContext()) CU(cuCtxDestroy(context));
  }

  // Runs the next step. If a new round was announced, stores its number in `round`; otherwise does
  // filler work. Returns false when the thread must stop.
  bool Next(uint64_t& round) {
    {
      std::unique_lock lock(board_.mutex);
      if (board_.round == round && !board_.stop) {
        lock.unlock();
        Churn(++filler_);
        // Leave the processor to other threads; nothing waits for this thread.
        const timespec rest{0, 5000000};
        nanosleep(&rest, nullptr);
        return true;
      }
      if (board_.stop) return false;
      round = board_.round;
    }
    const auto salt = static_cast<uint32_t>(round);
    const uint64_t checksum = Churn(round << 32);
    Launch(step_, GridFor(kCount), stream_, lasting_.address(), kCount, salt);
    CU(cuStreamSynchronize(stream_));
    StepInPlace(expected_, salt);
    const std::vector<uint32_t> found = lasting_.Read();
    Compare("a thread's long-lived buffer", found, expected_);

    std::lock_guard lock(board_.mutex);
    board_.checksum[index_] = Mix64(checksum) + Checksum(found);
    board_.finished_round[index_] = round;
    board_.changed.notify_all();
    return true;
  }

  // Allocates three buffers of different sizes, changes, verifies and frees them.
  uint64_t Churn(uint64_t seed) {
    uint64_t sum = 0;
    std::array<DeviceArray<uint32_t>, 3> buffers;
    std::array<std::vector<uint32_t>, 3> expected;
    for (size_t b = 0; b < buffers.size(); ++b) {
      expected[b] = RandomWords(seed + index_, 512 * (b + 1) + seed % 7);
      buffers[b] = DeviceArray<uint32_t>(expected[b]);
      Launch(step_, GridFor(expected[b].size()), stream_, buffers[b].address(),
             static_cast<uint32_t>(expected[b].size()), index_);
    }
    CU(cuStreamSynchronize(stream_));
    for (size_t b = 0; b < buffers.size(); ++b) {
      StepInPlace(expected[b], index_);
      const std::vector<uint32_t> found = buffers[b].Read();
      Compare("a thread's passing buffer", found, expected[b]);
      sum = Mix64(sum) + Checksum(found);
      buffers[b].Free();
    }
    return sum;
  }

  const uint32_t index_;
  Board& board_;
  std::thread thread_;
  uint64_t filler_ = 0;
  CUstream stream_ = nullptr;
  CUmodule module_ = nullptr;
  CUfunction step_ = nullptr;
  DeviceArray<uint32_t> lasting_;
  std::vector<uint32_t> expected_;
};

class Threads : public Workload {
 public:
  void SetUp(const Options& options) override {
    OpenGpu(options);
    for (Worker& worker : workers_) worker.Start();
  }

  uint64_t Round(uint64_t round) override {
    std::unique_lock lock(board_.mutex);
    board_.round = round;
    board_.changed.wait(lock, [&] {
      for (uint64_t finished : board_.finished_round) {
        if (finished != round) return false;
      }
      return true;
    });
    uint64_t sum = 0;
    for (uint64_t checksum : board_.checksum) sum = Mix64(sum) + checksum;
    return sum;
  }

  // Each thread verifies its own buffer before it exits.
  void Verify() override {
    {
      std::lock_guard lock(board_.mutex);
      board_.stop = true;
    }
    for (Worker& worker : workers_) worker.Join();
    VerifyBallast();
  }

  void Sabotage() override { FlipByte(workers_[0].lasting() + 1000); }

  void TearDown() override { CloseGpu(); }

 private:
  Board board_;
  std::array<Worker, kThreads> workers_ = {{{0, board_}, {1, board_}, {2, board_}, {3, board_}}};
};

}  // namespace
}  // namespace workloads

int main(int argc, char** argv) {
  const workloads::Options options = workloads::Begin(argc, argv);
  workloads::Threads threads;
  workloads::Run(threads, options);
}
