#include "common/pair.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/arithmetic.h"
#include "common/steady.h"

namespace workloads {

void WriteAll(int fd, const void* data, size_t size) {
  if (write(fd, data, size) != ssize_t(size)) {
    Fail("cannot write to the other process: %s", strerror(errno));
  }
}

bool ReadAll(int fd, void* data, size_t size) {
  ssize_t length;
  do {
    length = recv(fd, data, size, MSG_WAITALL);
  } while (length < 0 && errno == EINTR);
  if (length != 0 && length != ssize_t(size)) {
    Fail("read %zd of %zu bytes from the other process", length, size);
  }
  return length != 0;
}

namespace {

struct Message {
  char byte = 0;
  iovec text{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};

  Message() {
    header.msg_iov = &text;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
  }
};

}  // namespace

void SendDescriptor(int socket, int fd) {
  Message message;
  cmsghdr* control = CMSG_FIRSTHDR(&message.header);
  control->cmsg_level = SOL_SOCKET;
  control->cmsg_type = SCM_RIGHTS;
  control->cmsg_len = CMSG_LEN(sizeof fd);
  memcpy(CMSG_DATA(control), &fd, sizeof fd);
  if (sendmsg(socket, &message.header, 0) != 1) Fail("sendmsg: %s", strerror(errno));
}

int ReceiveDescriptor(int socket) {
  Message message;
  if (recvmsg(socket, &message.header, MSG_CMSG_CLOEXEC) != 1) Fail("the child did not start");
  cmsghdr* control = CMSG_FIRSTHDR(&message.header);
  if (control == nullptr || control->cmsg_type != SCM_RIGHTS) Fail("the child sent no descriptor");
  int fd = -1;
  memcpy(&fd, CMSG_DATA(control), sizeof fd);
  return fd;
}

void ChildProcess::Start(const Options& options, const char* unset) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) Fail("socketpair");
  char self[PATH_MAX] = {};
  if (readlink("/proc/self/exe", self, sizeof self - 1) < 0) Fail("readlink");
  const std::string device = std::to_string(options.device);
  const std::string memory = std::to_string(options.memory_bytes);
  pid = fork();
  if (pid < 0) Fail("fork: %s", strerror(errno));
  if (pid == 0) {
    dup2(ends[1], STDIN_FILENO);
    if (unset != nullptr) unsetenv(unset);
    execl(self, self, "--child", "1", "--device", device.c_str(), "--memory", memory.c_str(),
          nullptr);
    _exit(127);
  }
  close(ends[1]);
  socket = ends[0];
}

void ChildProcess::AwaitSuccess() const {
  int status = 0;
  if (waitpid(pid, &status, 0) != pid || status != 0) Fail("the child failed");
}

namespace {

constexpr uint64_t kSeed = 960;

// The shared memory as one of the two processes sees it.
class View {
 public:
  void Look(CUdeviceptr address) {
    address_ = address;
    module_ = LoadModule("step");
    step_ = Function(module_, "step_in_place");
  }
  void Step(uint32_t salt) const {
    Launch(step_, GridFor(kSharedWords), nullptr, address_, kSharedWords, salt);
    CU(cuCtxSynchronize());
  }
  uint64_t Sum() const { return Checksum(Read()); }
  std::vector<uint32_t> Read() const {
    std::vector<uint32_t> words(kSharedWords);
    CU(cuMemcpyDtoH(words.data(), address_, kSharedWords * sizeof(uint32_t)));
    return words;
  }
  void End() { CU(cuModuleUnload(module_)); }
  CUdeviceptr address() const { return address_; }

 private:
  CUdeviceptr address_ = 0;
  CUmodule module_ = nullptr;
  CUfunction step_ = nullptr;
};

uint32_t ChildsSalt(uint64_t round) { return static_cast<uint32_t>(round) + 1000; }

[[noreturn]] void LiveAsChild(const Options& options, Sharing& sharing) {
  OpenGpu(options);
  View view;
  view.Look(sharing.Give(options, RandomWords(kSeed, kSharedWords), STDIN_FILENO));
  uint64_t round = 0;
  while (ReadAll(STDIN_FILENO, &round, sizeof round)) {
    const uint64_t seen = view.Sum();
    view.Step(ChildsSalt(round));
    WriteAll(STDIN_FILENO, &seen, sizeof seen);
  }
  VerifyBallast();
  view.End();
  sharing.Free();
  CloseGpu();
  _exit(0);
}

class Pair : public Steady {
 public:
  explicit Pair(std::unique_ptr<Sharing> sharing) : sharing_(std::move(sharing)) {}

  void SetUp(const Options& options) override {
    Steady::SetUp(options);
    child_.Start(options);
    view_.Look(sharing_->Open(options, child_.socket));
    shared_ = RandomWords(kSeed, kSharedWords);
  }

  uint64_t Round(uint64_t round) override {
    const uint64_t own = Steady::Round(round);
    const auto salt = static_cast<uint32_t>(round);
    view_.Step(salt);
    StepInPlace(shared_, salt);
    WriteAll(child_.socket, &round, sizeof round);
    uint64_t seen = 0;
    if (!ReadAll(child_.socket, &seen, sizeof seen)) Fail("the child has ended");
    if (seen != Checksum(shared_)) Fail("the child reads data that the parent did not write");
    StepInPlace(shared_, ChildsSalt(round));
    Compare("the shared memory", view_.Read(), shared_);
    sharing_->Round(round);
    return Mix64(own) + seen;
  }

  void Verify() override {
    Compare("the shared memory", view_.Read(), shared_);
    sharing_->Verify();
    Steady::Verify();
  }

  void Sabotage() override { FlipByte(view_.address() + 4321); }

  void TearDown() override {
    view_.End();
    sharing_->Close();
    close(child_.socket);
    child_.AwaitSuccess();
    Steady::TearDown();
  }

 private:
  std::unique_ptr<Sharing> sharing_;
  ChildProcess child_;
  View view_;
  std::vector<uint32_t> shared_;  // the expected content
};

}  // namespace

int SharingMain(int argc, char** argv, std::unique_ptr<Sharing> sharing) {
  const Options options = Begin(argc, argv);
  if (options.child > 0) LiveAsChild(options, *sharing);
  Pair pair(std::move(sharing));
  Run(pair, options);
}

}  // namespace workloads
