#include "checkpoint/describe.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "base/bounded.h"
#include "base/build_id.h"
#include "base/file.h"
#include "base/hex.h"
#include "jobs/agent_library.h"
#include "plan/journal.h"
#include "process/memory.h"
#include "process/namespace.h"

namespace stasis::checkpoint {
namespace {

using device::ProcessState;

store::GpuState ToImage(ProcessState state) {
  static_assert(static_cast<int>(ProcessState::kFailed) ==
                static_cast<int>(store::GpuState::kFailed));
  static_assert(static_cast<int>(ProcessState::kCheckpointed) ==
                static_cast<int>(store::GpuState::kCheckpointed));
  return static_cast<store::GpuState>(state);
}

const plan::RecordedProcess* FindDevice(const DumpedProgram& program,
                                        const process::ProcessId& id) {
  for (const auto& p : program.device_processes) {
    if (p.id == id) return &p;
  }
  return nullptr;
}

Result<store::Process> DescribeProcess(const DumpedProgram& program, const process::Stat& member) {
  store::Process p;
  p.pid = member.id.pid.value;
  p.ppid = member.parent.value;
  p.start_ticks = member.id.start_time;
  p.comm = member.comm;
  p.pgid = member.process_group;
  p.sid = member.session;
  STASIS_ASSIGN(p.namespace_pid, process::ReadInnerPid(member.id.pid));
  if (member.state == 'Z') return p;  // zombies have no executable
  STASIS_ASSIGN(p.exe, process::ReadExecutable(member.id.pid));
  if (const auto* device = FindDevice(program, member.id)) {
    p.recorded_state = ToImage(device->initial);
    for (const auto& gpu : device->gpus) p.gpu_uuids.push_back(gpu.value);
    for (const auto& gpu : device->visible) p.visible_gpu_uuids.push_back(gpu.value);
    p.device_bytes = device->device_bytes + device->away_bytes;
  }
  return p;
}

struct RequiredFile {
  uint64_t size_bytes;
  std::string build_id;
};

// Returns the path on this machine of an agent library that a container has as a bind mount, or an
// empty string. The mapped file must be the same file, because a container could imitate the
// library.
std::string AgentOfContainer(process::HostPid pid, const process::Mapping& mapping,
                             const Paths& paths) {
  if (!mapping.path.ends_with(std::string("/") + jobs::kAgentLibraryName)) return {};
  const std::string mapped =
      fmt::format("/proc/{}/map_files/{:x}-{:x}", pid.value, mapping.begin, mapping.end);
  const std::string path = jobs::AgentLibraryPath(paths, ReadBuildId(mapped).value_or(""));
  struct stat theirs, ours;
  const bool same = ::stat(mapped.c_str(), &theirs) == 0 && ::stat(path.c_str(), &ours) == 0 &&
                    FileId::Of(theirs) == FileId::Of(ours);
  return same ? path : std::string();
}

// Adds a line "SIZE BUILD-ID PATH" for each mapped file that CRIU requires at a restore; paths in
// /proc/PID/maps have no line breaks. Runs in the child process of AskBounded.
void AddRequiredFiles(process::HostPid pid, const Paths& paths, const NoteStep& note,
                      std::set<std::string>& seen, std::string& lines) {
  note(fmt::format("list the mappings of process {}", pid.value));
  auto mappings = process::ReadMappingsWithin(pid);
  if (!mappings) return;
  for (const auto& m : *mappings) {
    if (m.inode == 0 || !m.path.starts_with('/') || m.path.ends_with(" (deleted)")) continue;
    if (!seen.insert(fmt::format("{} {}", m.inode, m.path)).second) continue;
    note("read " + m.path);
    const std::string agent = AgentOfContainer(pid, m, paths);
    const std::string& path = agent.empty() ? m.path : agent;
    struct stat st;
    if (::stat(path.c_str(), &st) != 0 || st.st_ino != m.inode || !S_ISREG(st.st_mode)) continue;
    lines += fmt::format("{} {} {}\n", st.st_size, ReadBuildId(path).value_or(""), path);
  }
}

// Reads the files in a child process with a deadline, because they may be on a hung file system.
Result<std::map<std::string, RequiredFile>> ReadRequiredFiles(const process::ProcessTree& tree,
                                                              const Paths& paths,
                                                              const Deadline& deadline) {
  auto read = [&](const NoteStep& note) -> Result<std::string> {
    std::set<std::string> seen;
    std::string lines;
    for (const auto& member : tree.members)
      AddRequiredFiles(member.id.pid, paths, note, seen, lines);
    return lines;
  };
  STASIS_ASSIGN(std::string answer, AskBounded(read, deadline));
  std::map<std::string, RequiredFile> files;
  std::istringstream lines(answer);
  for (std::string line; std::getline(lines, line);) {
    const size_t id = line.find(' ') + 1, path = line.find(' ', id) + 1;
    files[line.substr(path)] = {std::stoull(line), line.substr(id, path - 1 - id)};
  }
  return files;
}

std::string TcpName(criu::Tcp tcp) {
  static constexpr const char* kNames[] = {"refuse", "close", "keep"};
  return kNames[static_cast<int>(tcp)];
}

}  // namespace

Result<store::Manifest> DescribeProgram(gpu_state::Services& services, const DumpedProgram& program,
                                        const Deadline& deadline) {
  store::Manifest m;
  m.host = store::HostNow();
  const process::Stat& root = program.tree.root();
  if (auto ns = process::ReadNamespace(root.id.pid, "pid")) m.host.pid_namespace = *ns;

  m.software.stasis_version = services.stasis_version;
  m.software.criu_version = program.criu_version;
  if (!program.device_processes.empty()) {
    STASIS_ASSIGN(auto driver, services.device->Driver());
    m.software.driver_kind = driver.kind;
    m.software.driver_version = driver.version;
    m.software.gpu_topology = program.gpu_topology;
  }

  m.job.id = program.job;
  STASIS_ASSIGN(m.job.argv, process::ReadCommandLine(root.id.pid, deadline));
  m.job.root_pid = root.id.pid.value;
  STASIS_ASSIGN(m.job.working_directory, ReadLink(fmt::format("/proc/{}/cwd", root.id.pid.value)));
  STASIS_ASSIGN(auto credentials, process::ReadCredentials(root.id.pid));
  m.job.uid = credentials.uid[1];
  m.job.gid = credentials.gid[1];
  m.job.leave_running = program.leave_running;
  m.job.suspended = !program.device_processes.empty() &&
                    std::all_of(program.device_processes.begin(), program.device_processes.end(),
                                [](const auto& p) { return p.suspended(); });

  for (const auto& member : program.tree.members) {
    STASIS_ASSIGN(auto p, DescribeProcess(program, member));
    m.processes.push_back(std::move(p));
  }
  STASIS_ASSIGN(const auto required, ReadRequiredFiles(program.tree, services.paths, deadline));
  for (const auto& [path, file] : required) {
    m.required_files.push_back({path, file.size_bytes, BytesOfHex(file.build_id)});
  }

  if (!program.device_processes.empty()) {
    STASIS_ASSIGN(auto gpus, services.device->Gpus());
    // List all GPUs, used or not, because the driver's restore requires a map of every GPU that the
    // program could see. A container without a GPU's device does not see that GPU.
    for (const auto& gpu : gpus) {
      uint64_t used = 0;
      bool seen =
          !gpu.minor || PathExists(fmt::format("/proc/{}/root/dev/nvidia{}",
                                               program.tree.root().id.pid.value, *gpu.minor));
      for (const auto& p : program.device_processes) {
        if (std::find(p.gpus.begin(), p.gpus.end(), gpu.uuid) == p.gpus.end()) continue;
        seen = true;
        // The distribution of a process's memory among its GPUs is not known.
        used += (p.device_bytes + p.away_bytes) / p.gpus.size();
      }
      if (seen) m.gpus.push_back({gpu.uuid.value, gpu.name, gpu.total_bytes, used});
    }
  }
  for (const auto& e : program.stdio.externals) {
    m.externals.push_back({e.key, e.kind, e.pid.value, e.fd, e.direction, e.path});
  }
  m.criu.tcp = TcpName(program.criu.tcp);
  m.criu.file_locks = program.criu.file_locks;
  m.criu.link_remap = program.criu.link_remap;
  m.criu.shell_job = program.stdio.shell_job;
  return m;
}

}  // namespace stasis::checkpoint
