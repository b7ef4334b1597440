#include "operations/recorded.h"

#include <algorithm>

#include "device/hip/hip_driver.h"

namespace stasis::operations {
namespace {

// Returns how many bytes of a process's GPU memory are in the image's blocks.
uint64_t RangeBytes(const store::Manifest& manifest, pid_t pid) {
  uint64_t sum = 0;
  for (const auto& range : manifest.ranges) sum += range.pid == pid ? range.size_bytes : 0;
  return sum;
}

// Returns how many bytes of a process's GPU memory the driver carries.
uint64_t DriverBytes(const store::Manifest& manifest, const store::Process& p) {
  return p.device_bytes - std::min(p.device_bytes, RangeBytes(manifest, p.pid));
}

}  // namespace

criu::Options WithRecorded(criu::Options options, const store::Manifest& manifest) {
  auto tcp = criu::ParseTcp(manifest.criu.tcp);
  if (options.tcp == criu::Tcp::kRefuse && tcp) options.tcp = *tcp;
  options.file_locks |= manifest.criu.file_locks;
  options.link_remap |= manifest.criu.link_remap;
  options.shell_job |= manifest.criu.shell_job;
  return options;
}

uint64_t CpuBytes(const store::Manifest& manifest) {
  uint64_t sum = 0;
  for (const auto& file : manifest.files) {
    sum += file.path.starts_with("cpu/") ? file.size_bytes : 0;
  }
  for (const auto& file : manifest.page_files) sum += file.size_bytes;
  return sum;
}

uint64_t DriverBytes(const store::Manifest& manifest) {
  uint64_t sum = 0;
  for (const auto& p : manifest.processes) sum += DriverBytes(manifest, p);
  return sum;
}

gpu_state::Processes RecordedProcesses(const store::Manifest& manifest) {
  // CRIU's plugin restores programs of HIP, so the driver finds them running.
  const auto state = device::hip::IsHipDriver(manifest.software.driver_kind)
                         ? device::ProcessState::kRunning
                         : device::ProcessState::kCheckpointed;
  gpu_state::Processes recorded;
  for (const auto& p : manifest.processes) {
    if (!p.is_cuda()) continue;
    recorded.push_back({{{p.pid}, 0}, state, {}, DriverBytes(manifest, p)});
    for (const auto& uuid : p.gpu_uuids) recorded.back().gpus.push_back({uuid});
    for (const auto& uuid : p.visible_gpu_uuids) recorded.back().visible.push_back({uuid});
  }
  return recorded;
}

}  // namespace stasis::operations
