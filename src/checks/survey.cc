#include "checks/survey.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "base/install_layout.h"
#include "checks/readable.h"
#include "device/inspect.h"
#include "gpu_state/agents.h"
#include "gpu_state/suspended.h"
#include "jobs/store.h"
#include "process/identity.h"
#include "process/search.h"
#include "process/shared_server.h"

namespace stasis::checks {
namespace {

using device::ProcessState;
using gpu_state::Services;
using plan::Operation;
using process::HostPid;

// Error::raw in Domain::kProcess
constexpr int64_t kTreeChanged = 1;
constexpr int64_t kCpuMemoryNotReceived = 2;

// A check of one process of the tree. Returns an error if the target must be refused.
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
  return Fail(Code::kUnimplemented, "the target's process tree contains this command",
              "run it outside of the target, for example in another terminal");
}

Status RefuseForeign(const process::Stat& member, const Survey&) {
  return process::CheckOwn(member, Caller::Self());
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
  if (member.id != survey.tree.root().id) return {};  // zombie children can be saved
  return Fail(Code::kNotFound, Describe(member) + " has ended and is a zombie");
}

constexpr Refusal kRefusals[] = {RefuseInit,    RefuseKernelThread, RefuseOurselves,
                                 RefuseForeign, RefuseEnded,        RefuseTraced};

Status RefuseMember(const process::Stat& member, const Survey& survey, bool collects) {
  for (Refusal refuse : kRefusals) {
    if (collects && refuse == RefuseTraced) continue;  // the preflight reports it for each thread
    STASIS_TRY(refuse(member, survey));
  }
  return {};
}

Status RefuseFailedDevice(const Survey& survey) {
  for (const auto& p : survey.device_processes) {
    if (p.state != ProcessState::kFailed) continue;
    return Fail(Code::kFailedPrecondition,
                fmt::format("the GPU state of process {} has failed and cannot be restored",
                            p.id.pid.value),
                "end the program; an earlier image of it can be restored");
  }
  return {};
}

// An agent that intercepts all GPU calls of its program reports all memory that the program shares.
// Without such an agent, or if the agent cannot be reached, sharing is detected by the program's
// sockets (docs/nccl.md).
struct AgentsView {
  bool complete = false;
  std::string unseen;  // the calls that the agent does not intercept; empty for other reasons
};

Result<AgentsView> AskAgent(const Services& services, const process::ProcessId& id) {
  auto agent = gpu_state::FindAgent(*services.agents, id);
  if (!agent && agent.error().code == Code::kAborted) return Fail(std::move(agent).error());
  if (!agent || !*agent) return AgentsView{};
  const agent_protocol::HelloReply& hello = (*agent)->hello();
  if ((hello.blockers & agent_protocol::kBlockerUnknownFunction) == 0) {
    return AgentsView{.complete = true};
  }
  return AgentsView{.unseen = gpu_state::WhyNotShared(hello)};
}

// Refuses shared memory, because the driver's checkpoint of it succeeds and only the restore fails.
Status RefuseSharedDeviceMemory(const Services& services, const Survey& survey) {
  for (const auto& p : survey.device_processes) {
    // A suspended process is not checked, because its GPU state has already left the GPU.
    if (p.state == ProcessState::kCheckpointed) continue;
    STASIS_ASSIGN(auto findings, device::Inspect(p.id.pid));
    auto fatal = std::find_if(findings.begin(), findings.end(),
                              [](const auto& finding) { return finding.fatal; });
    if (fatal == findings.end()) continue;
    STASIS_ASSIGN(const AgentsView view, AskAgent(services, p.id));
    if (view.complete) continue;
    std::string what =
        fmt::format("process {} {} ({})", p.id.pid.value, fatal->what, fatal->evidence);
    if (view.unseen.empty()) return Fail(Code::kUnimplemented, std::move(what), fatal->hint);
    return Fail(Code::kUnimplemented,
                what + ", and its agent does not intercept all of its GPU calls: " + view.unseen,
                fatal->agents_hint);
  }
  return {};
}

constexpr std::chrono::seconds kVisibleTimeout{10};

// Asks which GPUs the agent shows to the program. The driver opens the files of hidden GPUs too,
// but the program uses only those that it sees.
void FindVisible(agent_client::AgentLink& agent, SurveyedProcess& p) {
  auto visible = agent.Visible(kVisibleTimeout);
  if (!visible || visible->empty()) return;
  for (const auto& gpu : *visible) p.visible.push_back(gpu_state::UuidOf(gpu));
  std::erase_if(p.gpus, [&](const device::GpuUuid& gpu) {
    return std::find(p.visible.begin(), p.visible.end(), gpu) == p.visible.end();
  });
}

// Corrects device_bytes by the agent's figures. After a resume on the shared path, the program's
// memory is imported, and some drivers do not count imported memory. Memory imported from another
// process is counted for its owner only. Errors of agents are ignored here; shared_members.cc
// refuses them.
Status AskAgent(Services& services, SurveyedProcess& p) {
  STASIS_ASSIGN(auto driver, services.device->Driver());
  auto agent = gpu_state::FindAgent(*services.agents, p.id);
  if (!agent || !*agent) return {};
  const agent_protocol::HelloReply& hello = (*agent)->hello();
  if (driver.counts_imported) {
    p.device_bytes -= std::min(p.device_bytes, hello.ipc_bytes);
  } else {
    p.device_bytes += hello.imported_bytes;
  }
  FindVisible(**agent, p);
  return {};
}

void FindKeptContext(Services& services, SurveyedProcess& p) {
  auto record = gpu_state::LoadKeptContext(services.paths, p.id, *services.agents);
  if (!record) return;
  p.context_kept = true;
  p.away_bytes = record->device_bytes;
  p.gpus = record->gpus;
  p.visible = record->visible;
}

bool IsAmong(const process::Stat& stat, const std::vector<process::Stat>& all) {
  return std::any_of(all.begin(), all.end(), [&](const auto& one) { return one.id == stat.id; });
}

// Returns true for Stasis's shared servers, and for a Stasis command that runs inside the target,
// with its helpers.
bool IsOurProgram(HostPid pid) {
  if (process::IsSharedServer(pid)) return true;
  std::error_code unknown;
  const auto program =
      std::filesystem::read_symlink(fmt::format("/proc/{}/exe", pid.value), unknown);
  if (unknown) return false;
  auto mover = LibexecProgram("stasis-mover");
  return (mover && program.parent_path() == std::filesystem::path(*mover).parent_path()) ||
         program == std::filesystem::read_symlink("/proc/self/exe", unknown);
}

struct Found {
  process::ProcessTree tree;
  std::vector<process::Stat> outside;
};

// Finds the tree below the target, and processes outside of the tree that belong to the target.
Result<Found> FindMembers(const Services& services, const Target& target) {
  Found found;
  STASIS_ASSIGN(found.tree, process::ReadTree(target.root.pid));
  // A process that a member of the tree has started since the tree was read does not count as
  // outside. Later checks find it.
  auto is_below_tree = [&](HostPid pid) {
    const auto lineage = process::ReadLineage(pid);
    return std::any_of(lineage.begin(), lineage.end(), [&](const process::Stat& ancestor) {
      return found.tree.Contains(ancestor.id.pid);
    });
  };
  auto add = [&](process::Stat stat) {
    if (!process::IsAlive(stat) || is_below_tree(stat.id.pid) || IsOurProgram(stat.id.pid)) return;
    if (!IsAmong(stat, found.outside)) found.outside.push_back(std::move(stat));
  };
  if (!target.job.empty()) {
    STASIS_ASSIGN(auto job, jobs::Store(services.paths.jobs()).Load(target.job));
    for (HostPid pid : jobs::BackgroundProcesses(job)) {
      if (auto stat = process::ReadStat(pid)) add(std::move(*stat));
    }
  }
  STASIS_ASSIGN(const auto snapshot, process::Snapshot::Take());
  for (process::Stat& stat : snapshot.Session(target.root.pid)) add(std::move(stat));
  return found;
}

Result<std::vector<device::DeviceProcess>> FindUsers(Services& services,
                                                     const process::ProcessTree& tree,
                                                     const std::vector<process::Stat>& outside) {
  process::ProcessTree all = tree;
  all.members.insert(all.members.end(), outside.begin(), outside.end());
  return services.device->FindProcesses(all);
}

tl::unexpected<Error> Changed(const std::string& who, const char* what) {
  return Fail(Code::kAborted, Domain::kProcess, kTreeChanged,
              fmt::format("{} {} while the program was being stopped", who, what), "try again");
}

}  // namespace

std::vector<process::Stat> Survey::members() const {
  std::vector<process::Stat> members = tree.members;
  for (const auto& stat : outside) {
    const bool uses = std::any_of(device_processes.begin(), device_processes.end(),
                                  [&](const auto& p) { return p.id == stat.id; });
    if (uses) members.push_back(stat);
  }
  return members;
}

uint64_t Survey::device_bytes(bool suspended) const {
  uint64_t sum = 0;
  for (const auto& p : device_processes) {
    if ((p.state == ProcessState::kCheckpointed) == suspended) sum += p.device_bytes;
    if (suspended) sum += p.away_bytes;
  }
  return sum;
}

bool Survey::AnySuspended() const {
  return std::any_of(device_processes.begin(), device_processes.end(),
                     [](const auto& p) { return p.suspended(); });
}

bool Survey::AllSuspended() const {
  return std::all_of(device_processes.begin(), device_processes.end(),
                     [](const auto& p) { return p.suspended(); });
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
  for (const auto& member : members()) {
    if (process::IsAlive(member)) operation.members.push_back(member.id);
  }
  operation.device_processes = RecordedProcesses();
  return operation;
}

std::vector<plan::RecordedProcess> Survey::RecordedProcesses() const {
  std::vector<plan::RecordedProcess> recorded;
  for (const auto& p : device_processes) {
    recorded.push_back(
        {p.id, p.state, p.gpus, p.device_bytes, {}, p.context_kept, p.away_bytes, p.visible});
  }
  return recorded;
}

Result<Survey> SurveyTarget(Services& services, const Target& target,
                            std::vector<Refused>* refused) {
  const bool collects = refused != nullptr;
  auto collect = [&](const char* id, Status status) -> Status {
    if (status || !collects) return status;
    refused->push_back({id, std::move(status).error()});
    return {};
  };
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
  // Check the root before the tree is read, because the tree of pid 1 contains all processes and
  // never stops changing.
  survey.tree.members = {root};
  STASIS_TRY(RefuseMember(root, survey, collects));
  STASIS_ASSIGN(Found found, FindMembers(services, target));
  survey.tree = std::move(found.tree);
  survey.outside = std::move(found.outside);
  // Refuse processes of other users before reading anything that only their owner may read.
  for (const auto* all : {&survey.tree.members, &survey.outside}) {
    for (const auto& stat : *all) {
      Status own = RefuseForeign(stat, survey);
      if (!own && own.error().code != Code::kNotFound) return Fail(std::move(own).error());
    }
  }
  auto all = survey.tree.members;
  all.insert(all.end(), survey.outside.begin(), survey.outside.end());
  STASIS_TRY(CheckAgentReadable(all, ReadingDeadline(services.settings.phase_timeout_s)));
  STASIS_ASSIGN(auto users, FindUsers(services, survey.tree, survey.outside));
  for (auto& user : users) survey.device_processes.push_back({std::move(user)});
  for (const auto& member : survey.members()) STASIS_TRY(RefuseMember(member, survey, collects));
  STASIS_TRY(collect("gpu-failed", RefuseFailedDevice(survey)));
  STASIS_TRY(collect("gpu-sharing", RefuseSharedDeviceMemory(services, survey)));
  // A suspended process uses no GPU. Its record gives the GPUs and memory that a resume needs.
  for (auto& p : survey.device_processes) {
    if (p.state == ProcessState::kRunning) STASIS_TRY(AskAgent(services, p));
    if (p.state != ProcessState::kCheckpointed) {
      FindKeptContext(services, p);
      continue;
    }
    if (auto record = gpu_state::LoadSuspended(services.paths, p.id)) {
      p.gpus = record->gpus;
      p.visible = record->visible;
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
      fmt::format("process {} ({}) holds GPU files but does not use the driver: {}{}",
                  first.id.pid.value, first.comm, first.files.empty() ? "" : first.files.front(),
                  holders.size() > 1 ? fmt::format("; and {} others", holders.size() - 1) : ""),
      "a child forked without exec after CUDA was started inherits these files. Start the program "
      "with `stasis run`, whose agent closes them in the child; or start the child earlier, or "
      "with "
      "spawn or forkserver (PyTorch: DataLoader(multiprocessing_context=\"forkserver\"))");
}

Status CheckNothingOutside(const Survey& survey) {
  const auto members = survey.members();
  for (const auto& stat : survey.outside) {
    const bool uses_gpu = IsAmong(stat, members);
    if (survey.target.job.empty() && !uses_gpu) continue;
    return Fail(
        Code::kUnimplemented,
        fmt::format("{} {}: it runs in the background{}", Describe(stat),
                    survey.target.job.empty() ? "belongs to the session and has left the tree"
                                              : "of the job has left its tree",
                    uses_gpu ? " and uses a GPU" : ""),
        "keep that process in the foreground, or end it: an image would not contain it. A suspend "
        "includes it");
  }
  return {};
}

Status CheckStillOwn(const Survey& survey) {
  const Caller caller = Caller::Self();
  for (const auto& stat : survey.members()) {
    Status own = process::CheckOwn(stat, caller);
    // It is not an error if the process has ended.
    if (!own && own.error().code != Code::kNotFound) return own;
  }
  return {};
}

Status CheckUnchanged(const Survey& survey) {
  STASIS_ASSIGN(auto now, process::ReadTree(survey.target.root.pid));
  for (const auto& stat : now.members) {
    if (!IsAmong(stat, survey.tree.members)) return Changed(Describe(stat), "was started");
  }
  for (const auto& stat : survey.tree.members) {
    if (!IsAmong(stat, now.members)) return Changed(Describe(stat), "ended");
  }
  return {};
}

Status CheckSameUsers(Services& services, const Survey& survey) {
  auto was_user = [&](const process::ProcessId& id) {
    return std::any_of(survey.device_processes.begin(), survey.device_processes.end(),
                       [&](const auto& p) { return p.id == id; });
  };
  for (const auto& p : survey.device_processes) {
    if (!process::IsAlive(p.id)) return Changed(fmt::format("process {}", p.id.pid.value), "ended");
  }
  STASIS_ASSIGN(auto found, FindMembers(services, survey.target));
  const auto& [tree, outside] = found;
  // First look only at processes that did not use a GPU at the survey. A candidate may still be a
  // forked child that merely inherited GPU files. Only a search in all processes can detect that,
  // so it follows if there is a candidate.
  process::ProcessTree others = tree;
  others.members.insert(others.members.end(), outside.begin(), outside.end());
  std::erase_if(others.members, [&](const auto& stat) { return was_user(stat.id); });
  STASIS_ASSIGN(auto candidates, services.device->FindProcesses(others));
  if (candidates.empty()) return {};
  STASIS_ASSIGN(auto users, FindUsers(services, tree, outside));
  for (const auto& user : users) {
    if (was_user(user.id)) continue;
    return Changed(fmt::format("process {}", user.id.pid.value), "began to use a GPU");
  }
  return {};
}

Error AsTreeChange(const Target& target, Error error) {
  const bool gone = error.code == Code::kNotFound && error.domain == Domain::kProcess;
  if (!gone || !process::IsAlive(target.root)) return error;
  return Changed("one of its processes", fmt::format("ended ({})", error.ToString()).c_str())
      .value();
}

Error CpuMemoryNotReceived(const Error& cause) {
  Error error = Changed("its CPU memory", "could not be received").value();
  error.raw = kCpuMemoryNotReceived;
  error.message += fmt::format(" ({})", cause.ToString());
  return error;
}

bool IsCpuMemoryNotReceived(const Error& error) {
  return error.code == Code::kAborted && error.domain == Domain::kProcess &&
         error.raw == kCpuMemoryNotReceived;
}

bool TreeHasChanged(const Error& error) {
  return error.code == Code::kAborted && error.domain == Domain::kProcess &&
         error.raw == kTreeChanged;
}

}  // namespace stasis::checks
