// A STAND-IN for CRIU's plugin for AMD GPUs, for programs of HIP on a software GPU. It is not that
// plugin, and nothing here says whether that plugin works.
//
// It holds what the real one holds: all that stays with the driver of a HIP program. The real one
// saves it from the kernel driver to files of the image; here the driver moves it to memory of the
// program, which CRIU saves. Its errors have the words of the real one.
//
//   dump      PAUSE_DEVICES, CHECKPOINT_DEVICES, fini (after a dump with --leave-running)
//   restore   RESUME_DEVICES_LATE
//
// Like the real one, it leaves the programs of a failed dump stopped. softgpu-hip-unpause
// (unpause_main.cc) continues them.
//
// Built without CRIU's headers: the structures below are CRIU's plugin ABI, version 0.2.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <initializer_list>

#include "checkpoint_client.h"

extern "C" {
void print_on_level(unsigned int level, const char* format, ...);
int add_inventory_plugin(const char* name) __attribute__((weak));
bool check_and_remove_inventory_plugin(const char* name, size_t length) __attribute__((weak));
int criu_get_image_dir(void) __attribute__((weak));
void set_compel_interrupt_only_mode(void) __attribute__((weak));
extern int opts __attribute__((weak));  // its first member is final_state
}

namespace softgpu {
namespace {

constexpr char kName[] = "softgpu_hip_plugin";
constexpr int kHooks = 12;
// Of the hooks, the numbers 9 to 11: RESUME_DEVICES_LATE, PAUSE_DEVICES, CHECKPOINT_DEVICES.
constexpr int kStageDump = 0, kStageRestore = 2;
constexpr int kTaskAlive = 1;  // of final_state
constexpr unsigned kLogError = 1;
constexpr uint32_t kLockMs = 10000, kOtherMs = 60000;
constexpr int kMaxProcesses = 1024;

struct Descriptor {
  const char* name;
  int (*init)(int stage);
  void (*exit)(int stage, int ret);
  unsigned version;
  unsigned max_hooks;
  void* hooks[kHooks];
};

// CRIU calls plugins from a single thread.
int g_held[kMaxProcesses];  // locked or checkpointed by this dump
int g_held_count = 0;
bool g_listed = false;

int Failed(const char* what, CUresult result) {
  print_on_level(kLogError, "Error (stand_in_plugin.c:1): amdgpu_plugin: %s (ret:%d)\n", what,
                 int(result));
  return -1;
}

CheckpointRequest RequestOf(CheckpointOp op) {
  CheckpointRequest request{};
  request.op = op;
  return request;
}

// CRIU has stopped all threads by ptrace. Lets the driver's thread run for one or more requests.
class Running {
 public:
  explicit Running(int tid) : tid_(tid) {
    // It must not handle signals of the program. ptrace needs SIGTRAP.
    uint64_t blocked = ~(uint64_t{1} << (SIGTRAP - 1));
    runs_ = ptrace(PTRACE_GETSIGMASK, tid, sizeof mask_, &mask_) == 0 &&
            ptrace(PTRACE_SETSIGMASK, tid, sizeof blocked, &blocked) == 0 &&
            ptrace(PTRACE_SETOPTIONS, tid, nullptr, 0) == 0 &&
            ptrace(PTRACE_CONT, tid, nullptr, 0) == 0;
  }
  ~Running() {
    if (!runs_) return;
    constexpr long kSuspendSeccomp = 1 << 21;
    ptrace(PTRACE_INTERRUPT, tid_, nullptr, 0);
    waitpid(tid_, nullptr, __WALL);
    ptrace(PTRACE_SETOPTIONS, tid_, nullptr, kSuspendSeccomp | PTRACE_O_TRACESYSGOOD);
    ptrace(PTRACE_SETSIGMASK, tid_, sizeof mask_, &mask_);
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  const int tid_;
  uint64_t mask_ = 0;
  bool runs_ = false;
};

// Sends requests to a process that CRIU has stopped, or has not stopped yet. Requests that do not
// match the state of the process do nothing.
CUresult AskStopped(const Target& target, std::initializer_list<CheckpointOp> ops) {
  const Running running(ThreadIdOf(target));
  for (CheckpointOp op : ops) {
    CheckpointRequest request = RequestOf(op);
    request.timeout_ms = kOtherMs;
    const CUresult r = AskTarget(target, request);
    if (r != CUDA_SUCCESS && r != CUDA_ERROR_ILLEGAL_STATE) return r;
  }
  return CUDA_SUCCESS;
}

// Returns false for a process that does not use HIP.
bool UsesHip(int pid, Target* target) {
  return FindTarget(pid, kHipHeaderAddress, target) == CUDA_SUCCESS;
}

int PauseDevices(int pid) {
  Target target;
  if (!UsesHip(pid, &target)) return -ENOTSUP;
  for (int i = 0; i < g_held_count; ++i) {
    if (g_held[i] == pid) return 0;
  }
  if (g_held_count == kMaxProcesses) return -1;
  // Makes a CRIU without this plugin refuse the image.
  if (!g_listed && add_inventory_plugin != nullptr && add_inventory_plugin(kName) != 0) return -1;
  g_listed = true;
  CheckpointRequest request = RequestOf(CheckpointOp::kLock);
  request.timeout_ms = kLockMs;
  const CUresult r = AskTarget(target, request);
  if (r != CUDA_SUCCESS) return Failed("Failed to call process info ioctl", r);
  g_held[g_held_count++] = pid;
  return 0;
}

// Writes the file that the real plugin writes for each /dev/kfd. This one has no contents.
bool WriteFile(int pid) {
  char name[64];
  snprintf(name, sizeof(name), "amdgpu-kfd-%d.img", pid);
  if (criu_get_image_dir == nullptr) return false;
  const int fd = openat(criu_get_image_dir(), name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  return fd >= 0 && close(fd) == 0;
}

int CheckpointDevices(int pid) {
  Target target;
  if (!UsesHip(pid, &target)) return -ENOTSUP;
  const CUresult r = AskStopped(target, {CheckpointOp::kCheckpoint});
  if (r != CUDA_SUCCESS) return Failed("Failed to dump", r);
  return WriteFile(pid) ? 0 : Failed("Failed to write the image", CUDA_ERROR_OPERATING_SYSTEM);
}

int ResumeDevicesLate(int pid) {
  Target target;
  if (!UsesHip(pid, &target)) return -ENOTSUP;
  const CUresult r = AskStopped(target, {CheckpointOp::kRestore, CheckpointOp::kUnlock});
  return r == CUDA_SUCCESS ? 0 : Failed("restore late ioctl failed", r);
}

int Init(int stage) {
  if (stage == kStageRestore && check_and_remove_inventory_plugin != nullptr) {
    check_and_remove_inventory_plugin(kName, strlen(kName));
  }
  // The driver's thread could not run in a frozen control group.
  if (set_compel_interrupt_only_mode != nullptr) set_compel_interrupt_only_mode();
  return 0;
}

// The real plugin continues the queues in any dump that reaches the last device file; a program
// that CRIU then ends does not need it.
void Fini(int stage, int ret) {
  const bool goes_on = &opts != nullptr && opts == kTaskAlive;
  if (stage != kStageDump || ret != 0 || !goes_on) return;
  for (int i = 0; i < g_held_count; ++i) (void)ResumeDevicesLate(g_held[i]);
}

}  // namespace
}  // namespace softgpu

extern "C" {
__attribute__((visibility("default"))) softgpu::Descriptor CR_PLUGIN_DESC = {
    softgpu::kName,
    softgpu::Init,
    softgpu::Fini,
    2 << 8,
    softgpu::kHooks,
    {nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr,
     reinterpret_cast<void*>(softgpu::ResumeDevicesLate),
     reinterpret_cast<void*>(softgpu::PauseDevices),
     reinterpret_cast<void*>(softgpu::CheckpointDevices)}};
}
