// A GPU program that maps memory of another program without an agent: its child creates a handle,
// exports it, and sends the descriptor. The driver's checkpoint of such a program succeeds, but its
// restore fails. The child exits when its parent does.
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/arithmetic.h"
#include "common/pair.h"
#include "common/steady.h"

namespace workloads {
namespace {

// The granularity of all GPUs so far.
constexpr size_t kBytes = 2u << 20;
constexpr uint32_t kWords = kBytes / sizeof(uint32_t);
constexpr uint64_t kSeed = 950;

class Piece {
 public:
  void Map(CUmemGenericAllocationHandle handle, int device) {
    handle_ = handle;
    CU(cuMemAddressReserve(&address_, kBytes, 0, 0, 0));
    CU(cuMemMap(address_, kBytes, 0, handle_, 0));
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, device},
                                 CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CU(cuMemSetAccess(address_, kBytes, &access, 1));
  }
  void Free() {
    CU(cuMemUnmap(address_, kBytes));
    CU(cuMemRelease(handle_));
    CU(cuMemAddressFree(address_, kBytes));
  }
  CUdeviceptr address() const { return address_; }

 private:
  CUdeviceptr address_ = 0;
  CUmemGenericAllocationHandle handle_ = 0;
};

[[noreturn]] void LiveAsChild(const Options& options) {
  OpenGpu(options);
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, options.device};
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle handle = 0;
  CU(cuMemCreate(&handle, kBytes, &properties, 0));
  Piece piece;
  piece.Map(handle, options.device);
  CU(cuMemcpyHtoD(piece.address(), RandomWords(kSeed, kWords).data(), kBytes));
  int fd = -1;
  CU(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  SendDescriptor(STDIN_FILENO, fd);
  close(fd);
  char byte;
  while (read(STDIN_FILENO, &byte, 1) < 0 && errno == EINTR) {
  }
  piece.Free();
  CloseGpu();
  _exit(0);
}

class Importer : public Steady {
 public:
  void SetUp(const Options& options) override {
    Steady::SetUp(options);
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) Fail("socketpair");
    char self[PATH_MAX] = {};
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0) Fail("readlink");
    const std::string device = std::to_string(options.device);
    child_ = fork();
    if (child_ < 0) Fail("fork: %s", strerror(errno));
    if (child_ == 0) {
      dup2(ends[1], STDIN_FILENO);
      unsetenv("LD_PRELOAD");
      execl(self, self, "--child", "1", "--device", device.c_str(), nullptr);
      _exit(127);
    }
    close(ends[1]);
    lifeline_ = ends[0];
    const int fd = ReceiveDescriptor(lifeline_);
    CUmemGenericAllocationHandle handle = 0;
    CU(cuMemImportFromShareableHandle(&handle, reinterpret_cast<void*>(intptr_t{fd}),
                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    piece_.Map(handle, options.device);
  }

  void Verify() override {
    std::vector<uint32_t> found(kWords);
    CU(cuMemcpyDtoH(found.data(), piece_.address(), kBytes));
    Compare("the child's memory", found, RandomWords(kSeed, kWords));
    Steady::Verify();
  }

  void TearDown() override {
    piece_.Free();
    close(lifeline_);
    int status = 0;
    if (waitpid(child_, &status, 0) != child_ || status != 0) Fail("the child failed");
    Steady::TearDown();
  }

 private:
  pid_t child_ = 0;
  int lifeline_ = -1;
  Piece piece_;
};

}  // namespace
}  // namespace workloads

int main(int argc, char** argv) {
  const workloads::Options options = workloads::Begin(argc, argv);
  if (options.child > 0) workloads::LiveAsChild(options);
  workloads::Importer importer;
  workloads::Run(importer, options);
}
