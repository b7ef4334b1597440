// A program without a GPU that has typical resources of a process tree: unread bytes in a pipe and
// in a socket pair, a deleted file, a timer, memory.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <vector>

#include "common/arithmetic.h"
#include "common/protocol.h"

namespace workloads {
namespace {

constexpr uint32_t kCount = 256 * 1024;
constexpr time_t kTimerHours = 1000;

void Demand(bool good, const char* what) {
  if (!good) Fail("%s: %s", what, strerror(errno));
}

// Reads the value of the last round and writes the next one.
void Exchange(int in, int out, uint64_t expected, uint64_t next, const char* what) {
  uint64_t found = 0;
  Demand(read(out, &found, sizeof found) == sizeof found, what);
  if (found != expected) {
    Fail("%s contained %016llx, not %016llx", what, static_cast<unsigned long long>(found),
         static_cast<unsigned long long>(expected));
  }
  Demand(write(in, &next, sizeof next) == sizeof next, what);
}

class NotCuda : public Workload {
 public:
  void SetUp(const Options&) override {
    words_.resize(kCount);
    for (uint32_t i = 0; i < kCount; ++i) words_[i] = RandomWord32(1, i);

    Demand(pipe2(pipe_, O_CLOEXEC) == 0, "pipe");
    Demand(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair_) == 0, "socketpair");
    const uint64_t first = Token(0);
    Demand(write(pipe_[1], &first, sizeof first) == sizeof first, "pipe");
    Demand(write(pair_[0], &first, sizeof first) == sizeof first, "socketpair");

    char path[] = "/tmp/stasis-workload-XXXXXX";
    file_ = mkstemp(path);
    Demand(file_ >= 0, "a file in /tmp");
    Demand(unlink(path) == 0, "unlink");
    Demand(pwrite(file_, words_.data(), Bytes(), 0) == static_cast<ssize_t>(Bytes()), "the file");

    timer_ = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
    itimerspec far_off{};
    far_off.it_value.tv_sec = kTimerHours * 3600;
    Demand(timer_ >= 0 && timerfd_settime(timer_, 0, &far_off, nullptr) == 0, "timerfd");
  }

  uint64_t Round(uint64_t round) override {
    Exchange(pipe_[1], pipe_[0], Token(round - 1), Token(round), "the pipe");
    Exchange(pair_[0], pair_[1], Token(round - 1), Token(round), "the socket pair");
    CompareFile();
    uint64_t sum = 0;
    for (uint32_t i = 0; i < kCount; ++i) {
      words_[i] = Step(words_[i], i, i, static_cast<uint32_t>(round));
      sum += ChecksumShare(words_[i], i);
    }
    Demand(pwrite(file_, words_.data(), Bytes(), 0) == static_cast<ssize_t>(Bytes()), "the file");
    return sum;
  }

  void Verify() override {
    CompareFile();
    itimerspec left{};
    Demand(timerfd_gettime(timer_, &left) == 0, "timerfd");
    // A checkpoint may or may not stop the timer, but the timer must neither expire nor start anew.
    if (left.it_value.tv_sec <= 0 || left.it_value.tv_sec > kTimerHours * 3600) {
      Fail("the timer has %lld s left", static_cast<long long>(left.it_value.tv_sec));
    }
  }

  void Sabotage() override { words_[4711] ^= 0x40; }

  void TearDown() override {
    for (int fd : {pipe_[0], pipe_[1], pair_[0], pair_[1], file_, timer_}) close(fd);
  }

 private:
  static uint64_t Token(uint64_t round) { return RandomWord(2, round); }
  size_t Bytes() const { return words_.size() * sizeof(uint32_t); }

  void CompareFile() {
    std::vector<uint32_t> found(kCount);
    Demand(pread(file_, found.data(), Bytes(), 0) == static_cast<ssize_t>(Bytes()), "the file");
    if (found != words_) Fail("the deleted file and memory differ");
  }

  std::vector<uint32_t> words_;
  int pipe_[2] = {-1, -1};
  int pair_[2] = {-1, -1};
  int file_ = -1;
  int timer_ = -1;
};

}  // namespace
}  // namespace workloads

int main(int argc, char** argv) {
  const workloads::Options options = workloads::Begin(argc, argv);
  workloads::NotCuda notcuda;
  workloads::Run(notcuda, options);
}
