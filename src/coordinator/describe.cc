#include "coordinator/describe.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/build_id.h"
#include "base/file.h"
#include "coordinator/agent_files.h"
#include "coordinator/gpu_room.h"
#include "coordinator/program_pids.h"
#include "process/namespace.h"

namespace stasis::coordinator {
namespace {

using device::ProcessState;

image::GpuState ToImage(ProcessState state) {
  static_assert(static_cast<int>(ProcessState::kFailed) ==
                static_cast<int>(image::GpuState::kFailed));
  static_assert(static_cast<int>(ProcessState::kCheckpointed) ==
                static_cast<int>(image::GpuState::kCheckpointed));
  return static_cast<image::GpuState>(state);
}

const SurveyedProcess* FindDevice(const Survey& survey, const process::ProcessId& id) {
  for (const auto& p : survey.device_processes) {
    if (p.id == id) return &p;
  }
  return nullptr;
}

Result<image::Process> DescribeProcess(const Survey& survey, const process::Stat& member) {
  image::Process p;
  p.pid = member.id.pid.value;
  p.ppid = member.parent.value;
  p.start_ticks = member.id.start_time;
  p.comm = member.comm;
  p.pgid = member.process_group;
  p.sid = member.session;
  STASIS_ASSIGN(p.namespace_pid, process::ReadInnerPid(member.id.pid));
  if (member.state == 'Z') return p;  // no executable any more
  STASIS_ASSIGN(p.exe, process::ReadExecutable(member.id.pid));
  if (const auto* device = FindDevice(survey, member.id)) {
    p.recorded_state = ToImage(device->state);
    for (const auto& gpu : device->gpus) p.gpu_uuids.push_back(gpu.value);
    p.device_bytes = device->device_bytes + device->away_bytes;
  }
  return p;
}

// Files that the program has mapped and that CRIU will insist on at a restore.
void AddRequiredFiles(process::HostPid pid, std::map<std::string, uint64_t>& files) {
  auto mappings = process::ReadMappings(pid);
  if (!mappings) return;
  for (const auto& m : *mappings) {
    if (m.inode == 0 || !m.path.starts_with('/') || m.path.ends_with(" (deleted)")) continue;
    struct stat st;
    if (::stat(m.path.c_str(), &st) != 0 || st.st_ino != m.inode || !S_ISREG(st.st_mode)) continue;
    files[m.path] = static_cast<uint64_t>(st.st_size);
  }
}

std::string TcpName(criu::Tcp tcp) {
  static constexpr const char* kNames[] = {"refuse", "close", "keep"};
  return kNames[static_cast<int>(tcp)];
}

Status CheckDriver(Services& services, const image::Manifest& manifest) {
  if (manifest.software.driver_kind.empty()) return {};
  STASIS_ASSIGN(auto driver, services.device->Driver());
  if (!driver.can_checkpoint) {
    return Fail(Code::kUnimplemented,
                "the program needs a GPU driver that can restore it: " + driver.why_not);
  }
  if (driver.kind != manifest.software.driver_kind ||
      driver.version != manifest.software.driver_version) {
    return Fail(Code::kUnimplemented,
                fmt::format("the image was made with driver {} {}, and this machine has {} {}",
                            manifest.software.driver_kind, manifest.software.driver_version,
                            driver.kind, driver.version),
                "restore it on a machine with the same driver");
  }
  return {};
}

bool IsUsed(const image::Manifest& manifest, const image::Gpu& gpu) {
  for (const auto& p : manifest.processes) {
    if (std::find(p.gpu_uuids.begin(), p.gpu_uuids.end(), gpu.uuid) != p.gpu_uuids.end())
      return true;
  }
  return false;
}

Status CheckGpus(Services& services, const image::Manifest& manifest, const device::GpuMap& map) {
  if (manifest.gpus.empty()) return {};
  STASIS_ASSIGN(auto gpus, services.device->Gpus());
  for (const auto& recorded : manifest.gpus) {
    if (!IsUsed(manifest, recorded)) continue;
    std::string wanted = recorded.uuid;
    for (const auto& [from, to] : map) {
      if (from.value == recorded.uuid) wanted = to.value;
    }
    auto gpu = std::find_if(gpus.begin(), gpus.end(),
                            [&](const auto& g) { return g.uuid.value == wanted; });
    if (gpu == gpus.end()) {
      return Fail(
          Code::kUnimplemented,
          fmt::format("GPU {} ({}) of the image is not in this machine", wanted, recorded.name),
          "name another of the same model with --gpu-map OLD=NEW; `stasis gpu ls` lists them");
    }
    if (gpu->name != recorded.name) {
      return Fail(Code::kUnimplemented,
                  fmt::format("the program ran on {}, and GPU {} is {}", recorded.name, gpu->index,
                              gpu->name),
                  "restore it onto a GPU of the same model");
    }
    if (gpu->free_bytes < recorded.used_bytes) {
      return Fail(Code::kResourceExhausted,
                  fmt::format("GPU {} has {} MiB free, and the program needs {} MiB", gpu->index,
                              gpu->free_bytes >> 20, recorded.used_bytes >> 20),
                  "suspend or end what else uses that GPU; the image is untouched");
    }
  }
  return {};
}

Status CheckRequiredFiles(const image::ImageReader& reader) {
  constexpr char kPutBack[] = "put the very same file back (same package, same version)";
  for (const auto& file : reader.manifest().required_files) {
    struct stat st;
    if (::stat(file.path.c_str(), &st) != 0) {
      if (CanPutBack(reader, file)) continue;
      std::string hint = PutBackHint(reader, file);
      return Fail(Code::kNotFound,
                  fmt::format("the program needs the file {}, which is missing", file.path),
                  hint.empty() ? kPutBack : hint);
    }
    if (static_cast<uint64_t>(st.st_size) != file.size_bytes) {
      return Fail(Code::kFailedPrecondition,
                  fmt::format("{} has {} bytes and had {} when the image was made", file.path,
                              st.st_size, file.size_bytes),
                  kPutBack);
    }
    if (file.build_id.empty()) continue;
    STASIS_ASSIGN(std::string build_id, ReadBuildId(file.path));
    if (build_id != HexOfBytes(file.build_id)) {
      return Fail(
          Code::kFailedPrecondition,
          fmt::format("{} is another build than when the image was made: {}, and was {}", file.path,
                      build_id.empty() ? "none" : build_id, HexOfBytes(file.build_id)),
          kPutBack);
    }
  }
  return {};
}

}  // namespace

Result<image::Manifest> DescribeTarget(Services& services, const Survey& survey,
                                       const DumpOptions& dump, const criu::StdioPlan& stdio,
                                       const std::string& criu_version) {
  image::Manifest m;
  m.host = image::HostNow();
  const process::Stat& root = survey.tree.root();
  if (auto ns = process::ReadNamespace(root.id.pid, "pid")) m.host.pid_namespace = *ns;

  m.software.stasis_version = services.stasis_version;
  m.software.criu_version = criu_version;
  if (!survey.device_processes.empty()) {
    STASIS_ASSIGN(auto driver, services.device->Driver());
    m.software.driver_kind = driver.kind;
    m.software.driver_version = driver.version;
  }

  m.job.id = survey.target.job;
  STASIS_ASSIGN(m.job.argv, process::ReadCommandLine(root.id.pid));
  m.job.root_pid = root.id.pid.value;
  STASIS_ASSIGN(m.job.working_directory, ReadLink(fmt::format("/proc/{}/cwd", root.id.pid.value)));
  STASIS_ASSIGN(auto credentials, process::ReadCredentials(root.id.pid));
  m.job.uid = credentials.uid[1];
  m.job.gid = credentials.gid[1];
  m.job.leave_running = dump.leave_running;
  m.job.suspended = !survey.device_processes.empty() && survey.AllSuspended();

  std::map<std::string, uint64_t> required;
  for (const auto& member : survey.tree.members) {
    STASIS_ASSIGN(auto p, DescribeProcess(survey, member));
    m.processes.push_back(std::move(p));
    AddRequiredFiles(member.id.pid, required);
  }
  for (const auto& [path, size] : required) {
    m.required_files.push_back({path, size, BytesOfHex(ReadBuildId(path).value_or(""))});
  }

  if (!survey.device_processes.empty()) {
    STASIS_ASSIGN(auto gpus, services.device->Gpus());
    // All of them, used or not: the driver's restore wants a map of every GPU that the program
    // could see.
    for (const auto& gpu : gpus) {
      uint64_t used = 0;
      for (const auto& p : survey.device_processes) {
        if (std::find(p.gpus.begin(), p.gpus.end(), gpu.uuid) == p.gpus.end()) continue;
        // How one process's memory is spread over several GPUs is not told.
        used += (p.device_bytes + p.away_bytes) / p.gpus.size();
      }
      m.gpus.push_back({gpu.uuid.value, gpu.name, gpu.total_bytes, used});
    }
  }
  for (const auto& e : stdio.externals) {
    m.externals.push_back({e.key, e.kind, e.pid.value, e.fd, e.direction, e.path});
  }
  m.criu.tcp = TcpName(dump.criu.tcp);
  m.criu.file_locks = dump.criu.file_locks;
  m.criu.link_remap = dump.criu.link_remap;
  m.criu.shell_job = stdio.shell_job;
  return m;
}

Status CheckRestorable(Services& services, const image::ImageReader& reader,
                       const device::GpuMap& map, bool new_pidns) {
  const image::Manifest& manifest = reader.manifest();
  if (!new_pidns) STASIS_TRY(CheckPidsFree(manifest));
  STASIS_TRY(CheckRequiredFiles(reader));
  STASIS_TRY(CheckDriver(services, manifest));
  return WithIdleMoversAway(services, [&] { return CheckGpus(services, manifest, map); });
}

}  // namespace stasis::coordinator
