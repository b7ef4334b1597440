#include "checks/restorable.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>

#include "base/bounded.h"
#include "base/build_id.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/hex.h"
#include "checkpoint/agent_files.h"
#include "checks/pids.h"
#include "checks/readable.h"
#include "device/gpu_map.h"
#include "device/hip/criu_plugin.h"
#include "device/hip/hip_driver.h"
#include "gpu_state/gpu_room.h"
#include "store/manifest_check.h"

namespace stasis::checks {
namespace {

// Returns the architecture for a machine name ("uname -m"), which differs in a 32-bit personality.
std::string Architecture(const std::string& machine) {
  if (machine == "i686") return "x86_64";
  if (machine == "armv8l") return "aarch64";
  return machine;
}

// Compares the architecture and page size, because CRIU restores registers and pages unchanged. An
// image may lack the page size (written by an older version of Stasis) or the machine (`uname`
// failed).
Status CheckHost(const store::Host& made_on) {
  const store::Host here = store::HostNow();
  if (!made_on.machine.empty() && Architecture(made_on.machine) != Architecture(here.machine)) {
    return Fail(Code::kUnimplemented,
                fmt::format("the image was made on {}, and this machine is {}",
                            store::Printable(made_on.machine), here.machine),
                "restore it on a machine of the same architecture");
  }
  if (made_on.page_bytes != 0 && made_on.page_bytes != here.page_bytes) {
    return Fail(Code::kUnimplemented,
                fmt::format("the image was made on a kernel with pages of {} bytes, and this "
                            "kernel's have {}",
                            made_on.page_bytes, here.page_bytes),
                "restore it under a kernel with the same page size (getconf PAGESIZE)");
  }
  return {};
}

Status CheckDriver(gpu_state::Services& services, const store::Manifest& manifest) {
  if (manifest.software.driver_kind.empty()) return {};
  STASIS_ASSIGN(auto driver, services.device->Driver());
  const bool is_hip = device::hip::IsHipDriver(manifest.software.driver_kind);
  if (!is_hip && !driver.can_checkpoint) {
    return Fail(Code::kUnimplemented,
                "the program needs a GPU driver that can restore it: " + driver.why_not);
  }
  if (driver.kind != manifest.software.driver_kind ||
      driver.version != manifest.software.driver_version) {
    return Fail(Code::kUnimplemented,
                fmt::format("the image was made with driver {} {}, and this machine has {} {}",
                            manifest.software.driver_kind, manifest.software.driver_version,
                            driver.kind, driver.version),
                is_hip && !device::hip::IsHipDriver(driver.kind)
                    ? "set STASIS_CUDA_LIBRARY to the path of HIP's library, or restore it on a "
                      "machine with AMD GPUs"
                    : "restore it on a machine with the same driver");
  }
  if (!is_hip) return {};
  STASIS_TRY(device::hip::CheckKernelDriver(driver.kind));
  STASIS_TRY(device::hip::FindCriuPlugin(driver.kind));
  STASIS_ASSIGN(const std::string here, device::hip::ReadTopology(driver.kind));
  return device::hip::CompareTopology(manifest.software.gpu_topology, here);
}

bool IsUsed(const store::Manifest& manifest, const store::Gpu& gpu) {
  for (const auto& p : manifest.processes) {
    if (std::find(p.gpu_uuids.begin(), p.gpu_uuids.end(), gpu.uuid) != p.gpu_uuids.end())
      return true;
  }
  return false;
}

// Returns the GPU memory that the program needs on a GPU. Counts the ranges themselves too, because
// `used_bytes` of a forged manifest may be too small, and host memory for all ranges is allocated
// before anything is loaded.
uint64_t NeededBytes(const store::Manifest& manifest, const store::Gpu& gpu) {
  uint64_t sum = 0;
  for (const auto& range : manifest.ranges) {
    if (manifest.gpus[range.gpu].uuid != gpu.uuid) continue;
    if (__builtin_add_overflow(sum, range.size_bytes, &sum)) return UINT64_MAX;
  }
  return std::max(sum, gpu.used_bytes);
}

Status CheckGpus(gpu_state::Services& services, const store::Manifest& manifest,
                 const device::GpuMap& map) {
  if (manifest.gpus.empty()) return {};
  STASIS_ASSIGN(auto gpus, services.device->Gpus());
  for (const auto& recorded : manifest.gpus) {
    const uint64_t needed = NeededBytes(manifest, recorded);
    if (!IsUsed(manifest, recorded) && needed == recorded.used_bytes) continue;
    const std::string wanted = device::Mapped(map, {recorded.uuid}).value;
    auto gpu = std::find_if(gpus.begin(), gpus.end(),
                            [&](const auto& g) { return g.uuid.value == wanted; });
    if (gpu == gpus.end()) {
      return Fail(
          Code::kUnimplemented,
          fmt::format("GPU {} ({}) of the image is not in this machine", wanted, recorded.name),
          "choose another one of the same model with --gpu-map OLD=NEW; `stasis gpu ls` lists "
          "them");
    }
    if (gpu->name != recorded.name) {
      return Fail(Code::kUnimplemented,
                  fmt::format("the program ran on {}, but GPU {} is {}", recorded.name, gpu->index,
                              gpu->name),
                  "restore it onto a GPU of the same model");
    }
    if (gpu->free_bytes < needed) {
      return Fail(Code::kResourceExhausted,
                  fmt::format("GPU {} has {} MiB free, and the program needs {} MiB", gpu->index,
                              gpu->free_bytes >> 20, needed >> 20),
                  "suspend or end other programs on that GPU; the image is unchanged");
    }
  }
  return {};
}

Status CompareRequiredFiles(const store::ImageReader& reader, checkpoint::AgentSource source,
                            const NoteStep& note) {
  constexpr char kPutBack[] = "install the same version of the file again";
  for (const auto& file : reader.manifest().required_files) {
    note("inspect " + file.path + ", which the program needs");
    struct stat st;
    if (::stat(file.path.c_str(), &st) != 0) {
      if (checkpoint::CanPutBack(reader, file, source)) continue;
      std::string hint = checkpoint::PutBackHint(reader, file);
      return Fail(Code::kNotFound,
                  fmt::format("the program needs the file {}, which is missing", file.path),
                  hint.empty() ? kPutBack : hint);
    }
    // Do not open a device, because that may have side effects.
    if (!S_ISREG(st.st_mode)) {
      return Fail(Code::kFailedPrecondition, file.path + " is not a regular file", kPutBack);
    }
    if (static_cast<uint64_t>(st.st_size) != file.size_bytes) {
      return Fail(Code::kFailedPrecondition,
                  fmt::format("{} has {} bytes, but had {} when the image was made", file.path,
                              st.st_size, file.size_bytes),
                  kPutBack);
    }
    if (file.build_id.empty()) continue;
    STASIS_ASSIGN(std::string build_id, ReadBuildId(file.path));
    if (build_id != HexOfBytes(file.build_id)) {
      return Fail(
          Code::kFailedPrecondition,
          fmt::format("{} has the build id {}, but had {} when the image was made", file.path,
                      build_id.empty() ? "(none)" : build_id, HexOfBytes(file.build_id)),
          kPutBack);
    }
  }
  return {};
}

// Compares the files in a child process, because their file system may not answer.
Status CheckRequiredFiles(const store::ImageReader& reader, checkpoint::AgentSource source,
                          const Deadline& deadline) {
  auto compare = [&](const NoteStep& note) -> Result<std::string> {
    STASIS_TRY(CompareRequiredFiles(reader, source, note));
    return std::string();
  };
  BoundedOptions options;
  options.keep_fds = {reader.dir_fd()};
  options.cancelled = ReadingCancelled();
  auto answer = AskBounded(compare, deadline, options);
  if (answer) return {};
  Error error = std::move(answer).error();
  if (error.code == Code::kDeadlineExceeded) {
    error.hint =
        "The file system of this file does not answer (FUSE, NFS). The image is unchanged.";
  }
  return Fail(std::move(error));
}

}  // namespace

Status CheckRestorable(gpu_state::Services& services, const store::ImageReader& reader,
                       const device::GpuMap& map, bool new_pidns, bool held) {
  const store::Manifest& manifest = reader.manifest();
  STASIS_TRY(CheckHost(manifest.host));
  if (!new_pidns && !held) STASIS_TRY(CheckPidsFree(manifest));
  const auto source = checkpoint::AgentSourceFor(reader, services.paths, /*trusted=*/!held);
  STASIS_TRY(
      CheckRequiredFiles(reader, source, ReadingDeadline(services.settings.phase_timeout_s)));
  STASIS_TRY(CheckDriver(services, manifest));
  return gpu_state::RetryWithoutIdleMovers(services,
                                           [&] { return CheckGpus(services, manifest, map); });
}

}  // namespace stasis::checks
