// cuInit: connects to the broker, selects the visible devices and starts the restore thread.

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <string>
#include <string_view>

#include "abi/cuda/visible_devices.h"
#include "api.h"
#include "capture.h"
#include "checkpoint.h"
#include "context.h"
#include "device.h"
#include "driver.h"
#include "event.h"
#include "fault.h"
#include "module.h"
#include "pool.h"

namespace softgpu {

Driver& driver() {
  alignas(Driver) static char storage[sizeof(Driver)];
  static Driver* made = new (storage) Driver;
  return *made;
}

namespace {

// Returns the list of visible devices, or nullptr for all.
const char* VisibleDevices() {
  const char* hip = driver().face.load() == Face::kHip ? getenv("HIP_VISIBLE_DEVICES") : nullptr;
  return hip != nullptr ? hip : getenv("CUDA_VISIBLE_DEVICES");
}

CUresult ChooseDevices() {
  const BrokerConfig& config = driver().broker.config();
  auto add = [&](int physical) {
    Device& device = driver().devices[driver().device_count++];
    device.physical = physical;
    memcpy(device.uuid, config.uuids[physical], sizeof(device.uuid));
  };
  const char* visible = VisibleDevices();
  if (visible == nullptr) {
    for (uint32_t i = 0; i < config.device_count; ++i) add(int(i));
    return CUDA_SUCCESS;
  }
  std::string texts[kMaxDevices];
  std::string_view uuids[kMaxDevices];
  for (uint32_t i = 0; i < config.device_count; ++i) {
    texts[i] = FormatUuid(config.uuids[i]);
    uuids[i] = texts[i];
  }
  const auto found =
      stasis::abi::ReadVisibleDevices(visible, uuids, static_cast<int>(config.device_count));
  for (int i = 0; i < found.count; ++i) add(found.index[i]);
  return found.repeated     ? CUDA_ERROR_INVALID_DEVICE
         : found.count == 0 ? CUDA_ERROR_NO_DEVICE
                            : CUDA_SUCCESS;
}

// SAFETY: runs in the child after fork, where no lock may be taken because its holder may not
// exist. The parent's contexts become unusable. The descriptors of the devices stay open in the
// child, as with the real driver. The connection to the broker is closed, and device memory is not
// mapped in the child (MapDeviceFile).
void AfterForkInChild() {
  driver().initialised.store(false);
  driver().broker.AbandonAfterFork();
}

// The real driver listens on a socket of this name, which contains the pid namespace and the pid.
// Nothing connects to this one. Kept for the life of the process; a copy of the process that CRIU
// restores has it too.
void OpenDriverSocket() {
  struct stat space;
  if (stat("/proc/self/ns/pid", &space) != 0) return;
  sockaddr_un address{AF_UNIX, {}};
  // A zero byte before and one after the name.
  const int length = snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1,
                              "cuda-uvmfd-%llu-%d", (unsigned long long)space.st_ino, getpid());
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const socklen_t size = socklen_t(offsetof(sockaddr_un, sun_path)) + socklen_t(length) + 2;
  if (fd < 0 || bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(fd, 1) != 0) {
    if (fd >= 0) close(fd);
  }
}

CUresult g_result = CUDA_ERROR_NOT_INITIALIZED;
std::atomic<pid_t> g_init_pid{0};

CUresult Initialise() {
  const bool hip = driver().face.load() == Face::kHip;
  driver().broker.Configure(hip);
  fault::SetDirectory(driver().broker.directory());
  if (CUresult r = driver().broker.Connect(); r != CUDA_SUCCESS) return r;
  if (CUresult r = ChooseDevices(); r != CUDA_SUCCESS) {
    driver().broker.Disconnect();
    return r;
  }
  pthread_atfork(nullptr, nullptr, AfterForkInChild);
  if (CUresult r = StartRestoreThread(hip); r != CUDA_SUCCESS) return r;
  if (!hip && getenv("SOFTGPU_DRIVER_SOCKET") != nullptr) OpenDriverSocket();
  driver().initialised.store(true);
  return CUDA_SUCCESS;
}

}  // namespace

int DriverVersion() {
  const char* wanted = getenv("SOFTGPU_CUDA_VERSION");
  const int version = wanted != nullptr ? atoi(wanted) : kDriverVersion;
  return std::clamp(version, 1000, kDriverVersion);
}

namespace api {

CUresult cuInit(unsigned int flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  pid_t before = 0;
  pid_t self = getpid();
  // A child of a process that has called cuInit cannot use the driver.
  if (!g_init_pid.compare_exchange_strong(before, self) && before != self) {
    return CUDA_ERROR_NOT_INITIALIZED;
  }
  std::lock_guard lock(driver().mutex);
  if (g_result == CUDA_SUCCESS) return g_result;
  if (driver().broker.connected()) return g_result;  // failed permanently
  g_result = Initialise();
  return g_result;
}

CUresult cuDriverGetVersion(int* version) {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = DriverVersion();
  return CUDA_SUCCESS;
}

}  // namespace api
}  // namespace softgpu
