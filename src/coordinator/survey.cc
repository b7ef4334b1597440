#include "coordinator/survey.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "base/file.h"
#include "coordinator/agents.h"
#include "coordinator/suspended.h"
#include "device/inspect.h"
#include "jobs/store.h"

namespace stasis::coordinator {
namespace {

using device::ProcessState;
using process::HostPid;

// The software GPU's own process: it hangs below whoever reaps, and is no part of the program.
constexpr const char* kSoftgpuBroker = "softgpu-broker";

std::string Describe(const process::Stat& stat) {
  return fmt::format("process {} ({})", stat.id.pid.value, stat.comm);
}

// One thing that makes an operation impossible, looked for in every member of the tree.
using Refusal = Status (*)(const process::Stat& member, const Survey& survey);

Status RefuseInit(const process::Stat& member, const Survey&) {
  if (member.id.pid.value != 1) return {};
  return Fail(Code::kUnimplemented, "process 1 is the machine's init; it cannot be checkpointed");
}

Status RefuseKernelThread(const process::Stat& member, const Survey&) {
  if (!member.kernel_thread) return {};
  return Fail(Code::kUnimplemented, Describe(member) + " is a kernel thread");
}

Status RefuseOurselves(const process::Stat& member, const Survey&) {
  if (member.id.pid.value != ::getpid()) return {};
  return Fail(Code::kUnimplemented, "the target's process tree holds this very command",
              "run it from outside of the target, for example from another terminal");
}

Status RefuseForeign(const process::Stat& member, const Survey&) {
  if (::geteuid() == 0) return {};
  STASIS_ASSIGN(auto credentials, process::ReadCredentials(member.id.pid));
  for (uid_t uid : credentials.uid) {
    if (uid == ::geteuid()) continue;
    return Fail(
        Code::kPermissionDenied,
        fmt::format("{} belongs to user {}, you are user {}", Describe(member), uid, ::geteuid()),
        "run it as that user or as root");
  }
  return {};
}

Status RefuseTraced(const process::Stat& member, const Survey&) {
  STASIS_ASSIGN(auto credentials, process::ReadCredentials(member.id.pid));
  if (credentials.tracer.value == 0) return {};
  return Fail(Code::kUnimplemented,
              fmt::format("{} is traced by process {}", Describe(member), credentials.tracer.value),
              "detach the debugger (or strace) first");
}

Status RefuseEnded(const process::Stat& member, const Survey& survey) {
  if (member.state != 'Z' && member.state != 'X') return {};
  if (member.id != survey.tree.root().id) return {};  // a zombie child is saved like any other
  return Fail(Code::kNotFound, Describe(member) + " has ended and waits for its parent to notice");
}

constexpr Refusal kRefusals[] = {RefuseInit,    RefuseKernelThread, RefuseOurselves,
                                 RefuseForeign, RefuseEnded,        RefuseTraced};

Status RefuseFailedDevice(const Survey& survey) {
  for (const auto& p : survey.device_processes) {
    if (p.state != ProcessState::kFailed) continue;
    return Fail(Code::kFailedPrecondition,
                fmt::format("the GPU state of process {} has failed and cannot be brought back",
                            p.id.pid.value),
                "end the program; an earlier image of it can be restored");
  }
  return {};
}

// What the driver would only refuse when it is too late: its checkpoint succeeds and its restore
// does not.
Status RefuseSharedDeviceMemory(const Survey& survey) {
  for (const auto& p : survey.device_processes) {
    STASIS_ASSIGN(auto findings, device::Inspect(p.id.pid));
    for (const auto& finding : findings) {
      if (!finding.fatal) continue;
      return Fail(Code::kUnimplemented,
                  fmt::format("process {} {} ({})", p.id.pid.value, finding.what, finding.evidence),
                  finding.hint);
    }
  }
  return {};
}

// Memory that came back by the shared path is an import, which not every driver counts as its own.
// An agent that does not answer is refused where it matters (shared_suspend.cc).
Status CountImported(Services& services, device::DeviceProcess& p) {
  STASIS_ASSIGN(auto driver, services.device->Driver());
  if (driver.counts_imported) return {};
  auto agent = FindAgent(p.id);
  if (agent && *agent) p.device_bytes += (*agent)->hello().imported_bytes;
  return {};
}

uint64_t ReadNumber(const std::string& path, uint64_t otherwise) {
  auto text = ReadFile(path, 4096);
  if (!text || text->empty() || !std::isdigit(static_cast<unsigned char>((*text)[0])))
    return otherwise;
  return std::strtoull(text->c_str(), nullptr, 10);
}

uint64_t MachineMemory() {
  auto text = ReadFile("/proc/meminfo");
  if (!text) return UINT64_MAX;
  std::istringstream lines(*text);
  for (std::string key, rest; lines >> key;) {
    uint64_t kibibytes;
    lines >> kibibytes;
    std::getline(lines, rest);
    if (key == "MemAvailable:") return kibibytes << 10;
  }
  return UINT64_MAX;
}

// What the tightest control group of a process still allows; UINT64_MAX without a limit. Page cache
// counts as used there and can be given back, so its inactive part is added.
uint64_t ControlGroupMemory(process::HostPid pid) {
  struct Kind {
    const char* line;  // in /proc/PID/cgroup, up to the path
    const char* root;
    const char* limit;
    const char* usage;
  };
  static constexpr Kind kKinds[] = {
      {"0::", "/sys/fs/cgroup", "memory.max", "memory.current"},
      {"0::", "/sys/fs/cgroup/unified", "memory.max", "memory.current"},
      {":memory:", "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"},
  };
  auto groups = ReadFile(fmt::format("/proc/{}/cgroup", pid.value));
  if (!groups) return UINT64_MAX;
  uint64_t least = UINT64_MAX;
  std::istringstream lines(*groups);
  for (std::string line; std::getline(lines, line);) {
    for (const Kind& kind : kKinds) {
      size_t at = line.find(kind.line);
      if (at == std::string::npos) continue;
      std::string path = line.substr(at + std::strlen(kind.line));
      while (!path.empty()) {
        std::string folder = kind.root + path + "/";
        uint64_t limit = ReadNumber(folder + kind.limit, UINT64_MAX);
        uint64_t usage = ReadNumber(folder + kind.usage, 0);
        if (limit < (1ull << 60)) {
          auto stat = ReadFile(folder + "memory.stat");
          size_t cache = stat ? stat->find("inactive_file ") : std::string::npos;
          if (cache != std::string::npos) {
            usage -=
                std::min<uint64_t>(usage, std::strtoull(stat->c_str() + cache + 14, nullptr, 10));
          }
          least = std::min(least, limit > usage ? limit - usage : 0);
        }
        path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
      }
    }
  }
  return least;
}

}  // namespace

uint64_t Survey::device_bytes(bool suspended) const {
  uint64_t sum = 0;
  for (const auto& p : device_processes) {
    if ((p.state == ProcessState::kCheckpointed) == suspended) sum += p.device_bytes;
  }
  return sum;
}

bool Survey::AllIn(ProcessState state) const {
  return std::all_of(device_processes.begin(), device_processes.end(),
                     [&](const auto& p) { return p.state == state; });
}

Result<Operation> Survey::ToOperation(const std::string& verb) const {
  STASIS_ASSIGN(process::Stat self, process::ReadStat({::getpid()}));
  Operation operation;
  operation.verb = verb;
  operation.target = target.name;
  operation.job = target.job;
  STASIS_ASSIGN(operation.boot_id, process::BootId());
  operation.owner = self.id;
  for (const auto& member : tree.members) operation.members.push_back(member.id);
  for (const auto& p : device_processes)
    operation.device_processes.push_back({p.id, p.state, p.gpus, p.device_bytes});
  return operation;
}

Result<Survey> SurveyTarget(Services& services, const Target& target) {
  Survey survey;
  survey.target = target;
  if (process::IsThreadOfAnother(target.root.pid.value)) {
    STASIS_ASSIGN(auto credentials, process::ReadCredentials(target.root.pid));
    return Fail(Code::kInvalidArgument, Domain::kUsage, 0,
                fmt::format("{} is a thread of process {}", target.root.pid.value,
                            credentials.thread_group.value),
                fmt::format("name the process: {}", credentials.thread_group.value));
  }
  STASIS_ASSIGN(process::Stat root, process::ReadStat(target.root.pid));
  if (root.id != target.root) {
    return Fail(Code::kNotFound, fmt::format("process {} has ended", target.root.pid.value));
  }
  // Asked before the tree is read: everything hangs below pid 1, and its tree would never hold
  // still.
  survey.tree.members = {root};
  for (Refusal refuse : kRefusals) STASIS_TRY(refuse(root, survey));
  STASIS_ASSIGN(survey.tree, process::ReadTree(target.root.pid));
  for (const auto& member : survey.tree.members) {
    for (Refusal refuse : kRefusals) STASIS_TRY(refuse(member, survey));
  }
  STASIS_ASSIGN(survey.device_processes, services.device->FindProcesses(survey.tree));
  STASIS_TRY(RefuseFailedDevice(survey));
  STASIS_TRY(RefuseSharedDeviceMemory(survey));
  // A suspended process holds no GPU any more: what it will need again was written down.
  for (auto& p : survey.device_processes) {
    if (p.state == ProcessState::kRunning) STASIS_TRY(CountImported(services, p));
    if (p.state != ProcessState::kCheckpointed) continue;
    if (auto record = LoadSuspended(services.paths, p.id)) {
      p.gpus = record->gpus;
      p.device_bytes = record->device_bytes;
    }
  }
  return survey;
}

FileId LogOf(const Services& services, const Target& target) {
  if (target.job.empty()) return {};
  auto job = jobs::Store(services.paths.jobs()).Load(target.job);
  return job && job->processes ? job->processes->log : FileId();
}

Status CheckOnlyDeviceUsers(Services& services, const Survey& survey) {
  STASIS_ASSIGN(auto holders, services.device->FindOtherHolders(survey.tree));
  if (holders.empty()) return {};
  const auto& first = holders.front();
  return Fail(
      Code::kUnimplemented,
      fmt::format("process {} ({}) holds GPU files but is no user of the driver: {}{}",
                  first.id.pid.value, first.comm, first.files.empty() ? "" : first.files.front(),
                  holders.size() > 1 ? fmt::format("; so do {} others", holders.size() - 1) : ""),
      "a child forked without exec after CUDA was started inherits them: start it before, or with "
      "spawn "
      "or forkserver (PyTorch: DataLoader(multiprocessing_context=\"forkserver\"))");
}

Status CheckNothingOutside(Services& services, const Survey& survey) {
  if (survey.target.job.empty()) return {};
  STASIS_ASSIGN(auto job, jobs::Store(services.paths.jobs()).Load(survey.target.job));
  for (process::HostPid pid : jobs::BackgroundProcesses(job)) {
    auto stat = process::ReadStat(pid);
    if (!stat || stat->comm == kSoftgpuBroker) continue;
    return Fail(
        Code::kUnimplemented,
        fmt::format("{} of the job has left its tree: it runs in the background", Describe(*stat)),
        "have it stay in the foreground, or end it: the image would not hold it");
  }
  return {};
}

Status CheckUnchanged(const Survey& survey) {
  STASIS_ASSIGN(auto now, process::ReadTree(survey.target.root.pid));
  if (now.SameMembers(survey.tree)) return {};
  return Fail(Code::kAborted, "the program started or ended processes while it was being stopped",
              "try again");
}

Status CheckHostMemory(uint64_t bytes, process::HostPid pid) {
  uint64_t available = MachineMemory();
  std::string where = "are available";
  if (uint64_t group = ControlGroupMemory(pid); group < available) {
    available = group;
    where = fmt::format("are left to the control group of process {}", pid.value);
  }
  if (available >= bytes) return {};
  return Fail(Code::kResourceExhausted,
              fmt::format("{} MiB of host memory are needed, and {} MiB {}", bytes >> 20,
                          available >> 20, where),
              "free memory, or use --ignore-memory on a machine whose memory grows as it is used");
}

}  // namespace stasis::coordinator
