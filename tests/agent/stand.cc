#include "stand.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "agent_client/find.h"
#include "agent_protocol/packet.h"
#include "process/proc.h"

extern char** environ;

namespace stasis::agent_test {

using namespace stasis::cuda;  // NOLINT

namespace {

// A directory with separate GPUs for this test program, removed at its end.
struct Gpu {
  Gpu() {
    char path[] = "/tmp/stasis-agent-test-XXXXXX";
    directory = mkdtemp(path);
    setenv("SOFTGPU_DIR", directory.c_str(), 1);
    setenv("SOFTGPU_MEMORY", "1G", 1);
    setenv("SOFTGPU_DEVICES", "1", 1);
    setenv("LD_LIBRARY_PATH", SOFTGPU_LIBRARY_DIR, 1);
    setenv("SOFTGPU_CUDART", SOFTGPU_LIBRARY_DIR "/libsoftgpu_cudart.so", 1);
  }
  ~Gpu() {
    std::string command = "rm -rf " + directory;
    if (system(command.c_str()) != 0) perror("rm");
  }
  std::string directory;
} gpu;

void Must(CUresult r, const char* what) { ASSERT_EQ(r, CUDA_SUCCESS) << what; }
#define MUST(call) Must(call, #call)

CUmemAllocationProp Properties() {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return properties;
}

// Maps a handle temporarily.
template <class F>
void Mapped(CUmemGenericAllocationHandle handle, size_t bytes, F f) {
  CUdeviceptr address = 0;
  MUST(cuMemAddressReserve(&address, bytes, 0, 0, 0));
  MUST(cuMemMap(address, bytes, 0, handle, 0));
  CUmemAccessDesc access{Properties().location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  MUST(cuMemSetAccess(address, bytes, &access, 1));
  f(address);
  MUST(cuMemUnmap(address, bytes));
  MUST(cuMemAddressFree(address, bytes));
}

}  // namespace

namespace {

// The target that uses HIP, if this test run uses it.
const char* HipTarget() { return getenv("AGENT_TEST_HIP_TARGET"); }

}  // namespace

Target::Target(const std::vector<std::string>& arguments, bool agent, const std::string& program) {
  int in[2], out[2];
  if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) abort();
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[0], 0);
  posix_spawn_file_actions_adddup2(&actions, out[1], 1);
  const char* hip = HipTarget();
  std::string path = !program.empty() ? program : hip != nullptr ? hip : AGENT_TARGET;
  std::vector<char*> argv{path.data()};
  std::vector<std::string> copies = arguments;
  for (std::string& argument : copies) argv.push_back(argument.data());
  argv.push_back(nullptr);
  std::vector<char*> environment;
  std::string preload = std::string("LD_PRELOAD=") + AGENT_LIBRARY;
  for (char** e = environ; *e != nullptr; ++e) environment.push_back(*e);
  if (agent) environment.push_back(preload.data());
  environment.push_back(nullptr);
  if (posix_spawn(&pid_, path.c_str(), &actions, nullptr, argv.data(), environment.data()) != 0) {
    abort();
  }
  posix_spawn_file_actions_destroy(&actions);
  close(in[0]);
  close(out[1]);
  in_.Reset(in[1]);
  out_.Reset(out[0]);
  if (program.empty()) {
    EXPECT_EQ(Hear(), "READY");
  }
}

Target::~Target() {
  in_.Reset();
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    Wait();
  }
}

int Target::Wait() {
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

void Target::Say(const std::string& line) {
  std::string text = line + "\n";
  ASSERT_EQ(write(in_.get(), text.data(), text.size()), ssize_t(text.size()));
}

std::string Target::Hear() {
  for (;;) {
    size_t end = buffer_.find('\n');
    if (end != buffer_.npos) {
      std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      return line;
    }
    pollfd item{out_.get(), POLLIN, 0};
    if (poll(&item, 1, 60000) <= 0) return "(silence)";
    char bytes[4096];
    ssize_t n = read(out_.get(), bytes, sizeof(bytes));
    if (n <= 0) return "(end)";
    buffer_.append(bytes, size_t(n));
  }
}

bool Target::SpeaksWithin(milliseconds time) {
  pollfd item{out_.get(), POLLIN, 0};
  return !buffer_.empty() || poll(&item, 1, int(time.count())) > 0;
}

void UseGpu() {
  static bool once = [] {
    CUcontext context = nullptr;
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    return true;
  }();
  (void)once;
}

Fault::Fault(const Target& target, const std::string& rules)
    : path_(gpu.directory + "/fault." + std::to_string(target.pid().value)) {
  Write(rules);
}

void Fault::Write(const std::string& rules) { std::ofstream(path_) << rules << std::flush; }

Hold::Hold(int number)
    : hold_(gpu.directory + "/hold." + std::to_string(number)),
      held_(gpu.directory + "/held." + std::to_string(number)) {
  unlink(held_.c_str());
  std::ofstream(hold_) << std::flush;
}

void Hold::Release() { unlink(hold_.c_str()); }

void Hold::AwaitCall() const {
  for (int i = 0; i < 30000 && access(held_.c_str(), F_OK) != 0; ++i) usleep(1000);
  EXPECT_EQ(access(held_.c_str(), F_OK), 0) << "no call has come to " << hold_;
}

bool SaysItShares(const Target& target) {
  auto header = agent_client::ReadAgentHeader(target.pid());
  return header && (header->memory & agent_protocol::kMemoryShared) != 0;
}

int SocketsOf(process::HostPid pid) {
  const auto files = process::ReadOpenFiles(pid);
  EXPECT_TRUE(files);
  return static_cast<int>(std::count_if(files->begin(), files->end(), [](const auto& file) {
    return file.target.starts_with("socket:");
  }));
}

UniqueFd ConnectSocket(Target& target) {
  auto header = agent_client::ReadAgentHeader(target.pid());
  UniqueFd process(int(syscall(SYS_pidfd_open, target.pid().value, 0)));
  UniqueFd control(int(syscall(438 /* pidfd_getfd */, process.get(), header->control_fd, 0)));
  int ends[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  agent_protocol::SendClientSocket(control.get(), ends[1]);
  close(ends[1]);
  return UniqueFd(ends[0]);
}

size_t FreeBytes() {
  UseGpu();
  size_t free = 0, total = 0;
  MUST(cuMemGetInfo_v2(&free, &total));
  return free;
}

// HIP's driver has no checkpoint; a closed gate keeps the program from its GPU.
void LockAndCheckpoint(const Target& target) {
  if (HipTarget() != nullptr) return;
  CUcheckpointLockArgs lock{};
  lock.timeoutMs = 10000;
  MUST(cuCheckpointProcessLock(target.pid().value, &lock));
  MUST(cuCheckpointProcessCheckpoint(target.pid().value, nullptr));
}

void RestoreAndUnlock(const Target& target) {
  if (HipTarget() != nullptr) return;
  MUST(cuCheckpointProcessRestore(target.pid().value, nullptr));
  MUST(cuCheckpointProcessUnlock(target.pid().value, nullptr));
}

std::vector<std::vector<char>> TakeAway(agent_client::Export* taken) {
  UseGpu();
  std::vector<std::vector<char>> bytes;
  for (size_t i = 0; i < taken->ranges.size(); ++i) {
    size_t size = taken->ranges[i].size_bytes;
    bytes.emplace_back(size);
    CUmemGenericAllocationHandle handle = 0;
    MUST(cuMemImportFromShareableHandle(&handle,
                                        reinterpret_cast<void*>(intptr_t(taken->fds[i].get())),
                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    Mapped(handle, size, [&](CUdeviceptr at) { MUST(cuMemcpyDtoH_v2(bytes[i].data(), at, size)); });
    MUST(cuMemRelease(handle));
  }
  taken->fds.clear();
  return bytes;
}

std::vector<UniqueFd> PutBack(const agent_client::Export& taken,
                              const std::vector<std::vector<char>>& bytes) {
  std::vector<UniqueFd> fds;
  for (size_t i = 0; i < taken.ranges.size(); ++i) {
    size_t size = taken.ranges[i].size_bytes;
    CUmemAllocationProp properties = Properties();
    CUmemGenericAllocationHandle handle = 0;
    MUST(cuMemCreate(&handle, size, &properties, 0));
    Mapped(handle, size, [&](CUdeviceptr at) { MUST(cuMemcpyHtoD_v2(at, bytes[i].data(), size)); });
    int fd = -1;
    MUST(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    fds.emplace_back(fd);
    MUST(cuMemRelease(handle));
  }
  return fds;
}

std::vector<int> Numbers(const std::vector<UniqueFd>& fds) {
  std::vector<int> numbers;
  for (const UniqueFd& fd : fds) numbers.push_back(fd.get());
  return numbers;
}

}  // namespace stasis::agent_test
