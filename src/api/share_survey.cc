#include "api/share_survey.h"

#include <fmt/format.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <vector>

#include "api/gpu_usage.h"
#include "api/methods.h"
#include "api/target.h"
#include "api/usage_error.h"
#include "api/utf8.h"
#include "api/worker_credentials.h"
#include "base/file.h"
#include "checks/look_ahead.h"
#include "checks/survey.h"
#include "dataplane/arena.h"
#include "gpu_state/agents.h"
#include "gpu_state/gpu_shards.h"
#include "gpu_state/host_memory.h"
#include "gpu_state/services.h"
#include "gpu_state/survey_agents.h"
#include "jobs/store.h"
#include "plan/journal.h"
#include "process/tree.h"

namespace stasis::api {
namespace {

// The memory of one process on its GPUs, and whether its agent can give it away.
struct ProcessFacts {
  std::map<std::string, v1::Share::Gpu> gpus;
  bool has_agent = false;
  std::string obstacle;
};

std::map<std::string, uint64_t> DataOf(const agent_protocol::HelloReply& hello) {
  std::map<std::string, uint64_t> data;
  const uint32_t count = std::min(hello.device_count, agent_protocol::kMaxDevices);
  for (uint32_t i = 0; i < count; ++i) {
    const auto& device = hello.devices[i];
    if (device.range_bytes != 0) data[gpu_state::UuidOf(device.uuid).value] += device.range_bytes;
  }
  return data;
}

ProcessFacts FactsOf(gpu_state::Services& services, const checks::SurveyedProcess& process) {
  ProcessFacts facts;
  std::map<std::string, uint64_t> data;
  auto agent = gpu_state::FindAgent(*services.agents, process.id);
  if (!agent) {
    facts.obstacle = fmt::format("process {}: {}", process.id.pid.value, agent.error().ToString());
  } else if (*agent == nullptr) {
    if (process::IsAlive(process.id)) {
      facts.obstacle = fmt::format("process {} runs without the agent", process.id.pid.value);
    }
  } else {
    facts.has_agent = true;
    data = DataOf((*agent)->hello());
    const std::string why = gpu_state::WhyNotShared((*agent)->hello());
    if (!why.empty()) facts.obstacle = fmt::format("process {}: {}", process.id.pid.value, why);
  }
  uint64_t data_bytes = 0;
  for (const auto& [gpu, bytes] : data) data_bytes += bytes;
  // A released agent may not count its memory; the record of the suspend does.
  const bool checkpointed = process.state == device::ProcessState::kCheckpointed;
  const uint64_t recorded = process.context_kept ? process.away_bytes
                            : checkpointed       ? process.device_bytes
                                                 : data_bytes;
  if (process.suspended() && data_bytes == 0 && !process.gpus.empty()) {
    for (const auto& gpu : process.gpus) data[gpu.value] = recorded / process.gpus.size();
    data_bytes = recorded;
  }
  for (const auto& [gpu, bytes] : data) facts.gpus[gpu].set_data_bytes(bytes);
  // The driver reports the sum for all GPUs.
  const uint64_t total = process.device_bytes;
  const uint64_t contexts = process.context_kept ? total : total - std::min(total, data_bytes);
  std::vector<std::string> names;
  for (const auto& gpu : process.gpus) names.push_back(gpu.value);
  if (names.empty()) {
    for (const auto& [gpu, bytes] : data) names.push_back(gpu);
  }
  for (const std::string& name : names) {
    facts.gpus[name].set_context_bytes(contexts / names.size());
  }
  return facts;
}

// Adds the host memory that the next suspend of a process needs.
void AddNeeds(const process::ProcessId& id, const ProcessFacts& facts,
              v1::ShareSurvey::Program& program) {
  const auto credentials = process::ReadCredentials(id.pid);
  if (!credentials) return;
  for (const auto& [uuid, gpu] : facts.gpus) {
    if (gpu.data_bytes() == 0) continue;
    auto& need = *program.add_arenas();
    need.mutable_process()->set_pid(id.pid.value);
    need.mutable_process()->set_start_ticks(id.start_time);
    need.set_gpu(uuid);
    need.set_bytes(gpu.data_bytes());
    need.set_owner(credentials->uid[1]);
  }
}

// Neither the driver nor its agent can ask a process that a signal or a debugger has stopped.
bool IsStopped(const process::Stat& stat) { return stat.state == 'T' || stat.state == 't'; }

// Returns the processes below this one that use a GPU and have an agent.
std::vector<process::Stat> AgentsBelow(process::HostPid root, gpu_state::SurveyAgents& agents) {
  std::vector<process::Stat> found;
  auto tree = process::ReadTree(root);
  if (!tree) return found;
  std::copy_if(tree->members.begin(), tree->members.end(), std::back_inserter(found),
               [&](const auto& stat) {
                 auto header = agents.ReadHeader(stat.id.pid);
                 return header && header->control_fd >= 0;
               });
  return found;
}

// Returns true if a process of the program that uses a GPU is stopped.
bool HasStopped(process::HostPid root, gpu_state::SurveyAgents& agents) {
  auto tree = process::ReadTree(root);
  if (!tree || std::none_of(tree->members.begin(), tree->members.end(), IsStopped)) return false;
  const auto found = AgentsBelow(root, agents);
  return std::any_of(found.begin(), found.end(), IsStopped);
}

// Lists the processes that have an agent, because the daemon watches them for an answer.
void SetSilent(process::HostPid root, gpu_state::SurveyAgents& agents,
               v1::ShareSurvey::Program& program) {
  program.set_busy(true);
  program.set_silent(true);
  program.clear_processes();
  for (const auto& stat : AgentsBelow(root, agents)) {
    auto& known = *program.add_processes();
    known.set_pid(stat.id.pid.value);
    known.set_start_ticks(stat.id.start_time);
  }
}

// `agents` are those of `services`.
void Survey(gpu_state::Services& services, gpu_state::SurveyAgents& agents, SpilledData& spilled,
            const jobs::Job& job, v1::ShareSurvey::Program& program) {
  const auto& root = job.processes->root;
  if (!plan::CheckNotUnderWay(services.paths, root)) return program.set_busy(true);
  if (HasStopped(root.pid, agents)) return SetSilent(root.pid, agents, program);
  (void)agents.TakeFailure();
  std::vector<checks::Refused> refused;
  auto surveyed = checks::SurveyTarget(services, {job.id, job.id, root}, &refused);
  // An error that may be gone at the next survey says nothing about the program.
  using Failure = gpu_state::SurveyAgents::Failure;
  if (!surveyed && !gpu_state::IsLasting(surveyed.error())) {
    if (agents.TakeFailure() == Failure::kSilent) return SetSilent(root.pid, agents, program);
    return program.set_busy(true);
  }
  if (!surveyed) {
    // For example a program of another user below this job.
    program.set_state("awake");
    program.set_obstacle(Utf8(surveyed.error().ToString()));
    return;
  }
  if (!refused.empty()) program.set_obstacle(Utf8(refused.front().error.ToString()));
  bool awake = false, kept = false;
  std::map<std::string, v1::Share::Gpu> gpus;
  for (const auto& process : surveyed->device_processes) {
    awake |= !process.suspended();
    kept |= process.context_kept;
    if (process.suspended()) {
      program.set_spilled_bytes(program.spilled_bytes() + spilled.Of(process.id));
    }
    ProcessFacts facts = FactsOf(services, process);
    if (facts.has_agent) {
      auto& known = *program.add_processes();
      known.set_pid(process.id.pid.value);
      known.set_start_ticks(process.id.start_time);
    }
    if (program.obstacle().empty()) program.set_obstacle(Utf8(facts.obstacle));
    if (facts.has_agent && facts.obstacle.empty() && !process.suspended()) {
      AddNeeds(process.id, facts, program);
    }
    for (const auto& [uuid, gpu] : facts.gpus) {
      gpus[uuid].set_data_bytes(gpus[uuid].data_bytes() + gpu.data_bytes());
      gpus[uuid].set_context_bytes(gpus[uuid].context_bytes() + gpu.context_bytes());
    }
  }
  for (auto& [uuid, gpu] : gpus) {
    gpu.set_uuid(uuid);
    *program.add_gpus() = gpu;
  }
  program.set_state(awake || surveyed->device_processes.empty() ? "awake"
                    : kept                                      ? "context kept"
                                                                : "suspended");
  // An operation may have begun meanwhile, or another client was connected to an agent.
  const Failure failure = agents.TakeFailure();
  if (failure != Failure::kNone || !plan::CheckNotUnderWay(services.paths, root)) {
    program.set_busy(true);
  }
  if (failure == Failure::kSilent) SetSilent(root.pid, agents, program);
}

uint64_t HostTotalBytes() {
  struct sysinfo info {};
  return ::sysinfo(&info) == 0 ? uint64_t{info.totalram} * info.mem_unit : 0;
}

// Adds the host memory that suspends can still use: free memory, and arenas of this user whose data
// is not needed.
void AddHostBytes(const Paths& paths, v1::ShareSurvey& survey) {
  auto store = gpu_state::ExistingArenas(paths);
  const dataplane::ArenaPlace place =
      store && store->places().front().in_memory()
          ? store->places().front()
          : dataplane::ArenaPlace{dataplane::ArenaPlace::Kind::kSharedMemory, "/dev/shm"};
  uint64_t bytes = dataplane::RoomIn(place, /*ignore_memory_check=*/false).value_or(0);
  survey.set_host_room_bytes(bytes);
  auto arenas = store ? store->List() : Result<std::vector<dataplane::ArenaInfo>>();
  for (const auto& arena : arenas.value_or(std::vector<dataplane::ArenaInfo>())) {
    const bool unused = arena.kept || (!arena.record && arena.damage.empty());
    if (arena.in_memory && unused && !arena.in_use) bytes += arena.capacity_bytes;
  }
  survey.set_host_free_bytes(bytes);
  survey.set_host_total_bytes(HostTotalBytes());
}

// Returns true if the job shares GPUs now, or will when it is restored.
bool MayShare(const jobs::Job& job) {
  if (job.share.empty() || jobs::WasMoved(job)) return false;
  if (job.state == jobs::State::kElsewhere) return false;
  return !jobs::HasEnded(job.state) ||
         (!job.checkpoints.empty() && !job.checkpoints.back().image.empty());
}

uint64_t SpillFreeBytes(const config::Settings& settings) {
  if (settings.spill_dir.empty()) return 0;
  return FreeBytes(settings.spill_dir).value_or(0);
}

Status CheckClass(const std::string& share_class) {
  if (jobs::IsShareClass(share_class)) return {};
  return FailUsage(fmt::format("'{}' is not a class of programs that share GPUs",
                               Utf8(share_class.substr(0, 64))),
                   "the classes are interactive and batch");
}

}  // namespace

Status CheckShare(const std::string& share_class, bool without_agent, const std::string& agent) {
  if (share_class.empty()) return {};
  STASIS_TRY(CheckClass(share_class));
  if (without_agent) return FailUsage("a program without the agent cannot share GPUs");
  if (agent.empty()) {
    return Fail(Code::kUnimplemented,
                "a program without the agent cannot share GPUs, and there is no agent for this "
                "processor");
  }
  return {};
}

Status CheckCanShare(Call& call, process::HostPid root, const std::string& share_class) {
  STASIS_TRY(CheckClass(share_class));
  gpu_state::Services services =
      gpu_state::MakeServices(call.paths, call.settings, STASIS_VERSION, /*keep_arenas=*/false);
  STASIS_ASSIGN(const auto stat, process::ReadStat(root));
  STASIS_ASSIGN(const auto survey, checks::SurveyTarget(services, {ToString(root), "", stat.id}));
  for (const auto& process : survey.device_processes) {
    const ProcessFacts facts = FactsOf(services, process);
    if (facts.obstacle.empty()) continue;
    return Fail(Code::kUnimplemented, "it cannot share GPUs: " + facts.obstacle,
                "a program that `stasis run --share` starts has the agent");
  }
  STASIS_ASSIGN(const auto outlook, checks::LookAhead(services, survey));
  if (!outlook.refusals.empty()) return Fail(outlook.refusals.front());
  STASIS_TRY(outlook.sharing);
  const uint64_t bytes = survey.device_bytes();
  return gpu_state::CheckHostMemory(bytes - std::min(bytes, outlook.unused_bytes), root);
}

Result<v1::ShareSurvey> SurveyShares(Call& call, const v1::SurveySharesRequest& request) {
  return SurveyJobs(call, request, /*job=*/"");
}

Result<v1::ShareSurvey> SurveyJobs(Call& call, const v1::SurveySharesRequest& request,
                                   const std::string& job) {
  v1::ShareSurvey survey;
  *survey.mutable_folders() = FoldersOf(call.paths);
  gpu_state::Services services =
      gpu_state::MakeServices(call.paths, call.settings, STASIS_VERSION, /*keep_arenas=*/false);
  if (request.gpus()) {
    AddHostBytes(call.paths, survey);
    auto gpus = services.device->Gpus();
    // Without a driver there are no GPUs to share.
    if (!gpus && gpus.error().code != Code::kUnimplemented) return Fail(std::move(gpus).error());
    for (const auto& gpu : gpus.value_or(std::vector<device::Gpu>())) {
      auto& message = *survey.add_gpus();
      message.set_uuid(gpu.uuid.value);
      message.set_total_bytes(gpu.total_bytes);
      message.set_free_bytes(gpu.free_bytes);
    }
    return survey;
  }
  // Data of programs that were killed while they were suspended.
  if (auto arenas = gpu_state::ExistingArenas(call.paths)) (void)arenas->Sweep();
  const auto agents = std::make_shared<gpu_state::SurveyAgents>(services.agents);
  services.agents = agents;
  const std::set<std::string> silent(request.silent().begin(), request.silent().end());
  const jobs::Store store(call.paths.jobs());
  SpilledData spilled(call.paths);
  STASIS_ASSIGN(const auto listed, store.List());
  for (const auto& entry : listed) {
    if (!entry.job || (!job.empty() && entry.id != job)) continue;
    const bool runs = entry.job->processes && entry.job->state == jobs::State::kRunning;
    const bool reserves = request.reserve() && runs && !jobs::WasMoved(*entry.job);
    if (MayShare(*entry.job) || reserves) survey.add_jobs(entry.id);
    if (!runs || (entry.job->share.empty() && !reserves)) continue;
    auto& program = *survey.add_programs();
    program.set_job(entry.id);
    program.set_class_(entry.job->share);
    const std::string signal_file = ShareSignalFile(store.Folder(entry.id));
    if (PathExists(signal_file)) program.set_signal_file(signal_file);
    const auto& root = entry.job->processes->root;
    program.mutable_root()->set_pid(root.pid.value);
    program.mutable_root()->set_start_ticks(root.start_time);
    if (silent.contains(entry.id)) {
      program.set_busy(true);
      program.set_silent(true);
      continue;
    }
    Survey(services, *agents, spilled, *entry.job, program);
  }
  survey.set_spill_free_bytes(SpillFreeBytes(call.settings));
  return survey;
}

}  // namespace stasis::api
