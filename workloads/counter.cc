// A counter in GPU memory with a UDP interface, modelled on the program in NVIDIA's article on
// cuda-checkpoint. It starts at 100, adds one for every packet and answers with the new value.
//
//   counter [--port P] [--memory SIZE] …     listens on 127.0.0.1:P (0: any), prints `PORT <n>`
//
// The packet `verify` is answered with `OK <checksum>` or `BAD` and is not counted. `quit` is
// answered with `BYE` and ends the program like SIGTERM. With --rounds the program counts by itself
// and opens no socket.
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include <string_view>

#include "common/gpu.h"

namespace workloads {
namespace {

constexpr int kStart = 100;

class Counter : public Workload {
 public:
  void SetUp(const Options& options) override {
    OpenGpu(options);
    module_ = LoadModule();
    increment_ = Function(module_, "increment");
    counter_ = FindGlobal(module_, "counter");
    if (counter_.bytes != sizeof(int)) Fail("the counter has %zu bytes", counter_.bytes);
  }

  uint64_t Round(uint64_t) override {
    Launch(increment_, {1, 1}, nullptr);
    ++added_;
    return static_cast<uint64_t>(Value());
  }

  bool Intact(uint64_t* checksum) {
    return BallastIsIntact(checksum) && Value() == kStart + added_;
  }

  void Verify() override {
    if (Value() != kStart + added_) {
      Fail("the counter is %d, not %d", Value(), kStart + added_);
    }
    VerifyBallast();
  }

  void Sabotage() override { FlipByte(counter_.address); }

  void TearDown() override {
    CU(cuModuleUnload(module_));
    CloseGpu();
  }

  int Value() {
    int value = 0;
    CU(cuMemcpyDtoH(&value, counter_.address, sizeof value));
    return value;
  }

 private:
  CUmodule module_ = nullptr;
  CUfunction increment_ = nullptr;
  Global counter_{};
  int added_ = 0;
};

int Listen(int port) {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (fd < 0 || bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    Fail("cannot listen on UDP port %d: %s", port, strerror(errno));
  }
  printf("PORT %d\n", ntohs(address.sin_port));
  return fd;
}

// Answers packets until SIGTERM or the packet `quit`.
void Serve(Counter& counter, int fd) {
  uint64_t round = 0;
  while (Wait(-1, fd) != Wake::kStop) {
    char packet[64];
    sockaddr_in peer{};
    socklen_t peer_size = sizeof peer;
    const ssize_t length = recvfrom(fd, packet, sizeof packet, MSG_DONTWAIT,
                                    reinterpret_cast<sockaddr*>(&peer), &peer_size);
    if (length < 0) continue;
    std::string_view word(packet, static_cast<size_t>(length));
    while (!word.empty() && (word.back() == '\n' || word.back() == '\0')) word.remove_suffix(1);

    char reply[64];
    if (word == "quit") {
      snprintf(reply, sizeof reply, "BYE\n");
    } else if (word == "verify") {
      uint64_t checksum = 0;
      if (counter.Intact(&checksum)) {
        snprintf(reply, sizeof reply, "OK %016llx\n", static_cast<unsigned long long>(checksum));
      } else {
        snprintf(reply, sizeof reply, "BAD\n");
      }
    } else {
      ++round;
      const uint64_t value = counter.Round(round);
      PrintRound(round, value);
      snprintf(reply, sizeof reply, "%llu\n", static_cast<unsigned long long>(value));
    }
    sendto(fd, reply, strlen(reply), 0, reinterpret_cast<sockaddr*>(&peer), peer_size);
    if (word == "quit") return;
  }
}

}  // namespace
}  // namespace workloads

int main(int argc, char** argv) {
  const workloads::Options options = workloads::Begin(argc, argv);
  workloads::Counter counter;
  if (options.rounds > 0) workloads::Run(counter, options);
  const int fd = workloads::Listen(options.port);
  counter.SetUp(options);
  workloads::PrintReady();
  workloads::Serve(counter, fd);
  workloads::Finish(counter, options);
}
