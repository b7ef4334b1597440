// cuInit: connects to the broker, selects the visible devices and starts the restore thread.

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <new>
#include <string>

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

// Reads VisibleDevices, a list of indices or prefixes of "GPU-…" names. The list ends at the
// first item without a match.
void ChooseDevices() {
  const BrokerConfig& config = driver().broker.config();
  auto add = [&](int physical) {
    Device& device = driver().devices[driver().device_count++];
    device.physical = physical;
    memcpy(device.uuid, config.uuids[physical], sizeof(device.uuid));
  };
  const char* visible = VisibleDevices();
  if (visible == nullptr) {
    for (uint32_t i = 0; i < config.device_count; ++i) add(int(i));
    return;
  }
  std::string list = visible;
  for (size_t at = 0; at < list.size();) {
    size_t end = std::min(list.find(',', at), list.size());
    std::string item = list.substr(at, end - at);
    at = end + 1;
    int physical = -1;
    for (uint32_t i = 0; i < config.device_count && !item.empty(); ++i) {
      if (item == std::to_string(i)) physical = int(i);
      if (item.starts_with("GPU-") && FormatUuid(config.uuids[i]).starts_with(item)) {
        physical = int(i);
      }
    }
    bool again = false;
    for (int i = 0; i < driver().device_count; ++i)
      again |= driver().devices[i].physical == physical;
    if (physical < 0 || again) break;
    add(physical);
  }
}

// SAFETY: runs in the child after fork, where no lock may be taken because its holder may not
// exist. The parent's contexts become unusable. The descriptors of the devices stay open in the
// child, as with the real driver. The connection to the broker is closed, and device memory is not
// mapped in the child (MapDeviceFile).
void AfterForkInChild() {
  driver().initialised.store(false);
  driver().broker.AbandonAfterFork();
}

CUresult g_result = CUDA_ERROR_NOT_INITIALIZED;
std::atomic<pid_t> g_init_pid{0};

CUresult Initialise() {
  const bool hip = driver().face.load() == Face::kHip;
  driver().broker.Configure(hip);
  fault::SetDirectory(driver().broker.directory());
  if (CUresult r = driver().broker.Connect(); r != CUDA_SUCCESS) return r;
  ChooseDevices();
  if (driver().device_count == 0) {
    driver().broker.Disconnect();
    return CUDA_ERROR_NO_DEVICE;
  }
  pthread_atfork(nullptr, nullptr, AfterForkInChild);
  if (CUresult r = StartRestoreThread(hip); r != CUDA_SUCCESS) return r;
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
