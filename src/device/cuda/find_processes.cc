// Classification of the processes of a tree: users of the driver, and other holders of device
// files.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "base/file.h"
#include "device/cuda/cuda_control.h"
#include "device/cuda/gpu_uuid.h"
#include "process/shared_server.h"

namespace stasis::device::cuda {
namespace {

using process::HostPid;
using process::Stat;
using wire::Op;

// Returns true if `tid`, a number in the process's pid namespace or in this one, is one of its
// threads.
bool HasThread(HostPid pid, pid_t tid) {
  auto threads = process::ReadThreads(pid);
  if (!threads) return false;
  for (pid_t thread : *threads) {
    if (thread == tid) return true;
    auto status = ReadFile(fmt::format("/proc/{}/task/{}/status", pid.value, thread));
    if (!status) continue;
    // "NSpid:\t4711\t12": the last number is the one in the process's own namespace.
    size_t at = status->find("NSpid:");
    if (at == std::string::npos) continue;
    std::string line = status->substr(at, status->find('\n', at) - at);
    if (std::atoi(line.c_str() + line.rfind('\t') + 1) == tid) return true;
  }
  return false;
}

}  // namespace

struct CudaControl::Member {
  const Stat* stat = nullptr;
  Footprint footprint;
  ProcessState state = ProcessState::kNone;
};

// Returns the processes that could use the driver, with the driver's answer about each.
Result<std::vector<CudaControl::Member>> CudaControl::Classify(const process::ProcessTree& tree) {
  std::vector<Member> members;
  for (const Stat& stat : tree.members) {
    if (stat.state == 'Z' || stat.state == 'X' || stat.kernel_thread) continue;
    auto footprint = ReadFootprint(stat.id.pid);
    if (!footprint && footprint.error().code == Code::kNotFound) continue;
    if (!footprint) {
      return Fail(std::move(footprint.error())
                      .WithContext(fmt::format("inspect process {}", stat.id.pid.value)));
    }
    if (footprint->candidate()) members.push_back({&stat, std::move(*footprint), {}});
  }
  for (Member& member : members) {
    const HostPid pid = member.stat->id.pid;
    // Device helpers initialise the driver, but use no GPU.
    if (process::RunsLibexecProgram(pid, kHelperProgram)) continue;
    auto state = StateOf(pid, member.footprint);
    if (!state && state.error().code == Code::kNotFound) continue;
    if (!state) {
      return Fail(
          std::move(state.error()).WithContext(fmt::format("inspect process {}", pid.value)));
    }
    member.state = *state;
  }
  // A child forked without exec has the address space and pipes of its parent, so the driver may
  // mistake it for the parent. If there are several candidates, each is a user only if the driver's
  // thread belongs to it.
  const auto users = std::count_if(members.begin(), members.end(), [](const Member& member) {
    return member.state != ProcessState::kNone;
  });
  for (Member& member : members) {
    if (users < 2 || member.state == ProcessState::kNone || member.state == ProcessState::kFailed) {
      continue;
    }
    auto tid = RestoreThread(member.stat->id.pid);
    if (tid && !HasThread(member.stat->id.pid, *tid)) member.state = ProcessState::kNone;
  }
  return members;
}

// Fills `gpus` and `device_bytes` from the driver's accounting, or from the device files.
Status CudaControl::AddMemory(DeviceProcess& found, const Footprint& footprint) {
  wire::Request request;
  request.op = Op::kGpus;
  request.pid = found.id.pid.value;
  STASIS_ASSIGN(wire::Reply reply, Ask(request, Deadline::In(options_.query_timeout)));
  if (reply.outcome != wire::Outcome::kDone) return {};  // optional, so an error is ignored
  const auto minors = NvidiaMinors();
  std::vector<GpuUuid> by_files;
  for (uint32_t i = 0; i < reply.gpu_count; ++i) {
    const wire::GpuRecord& gpu = reply.gpus[i];
    const GpuUuid uuid = ToText(gpu.uuid);
    uint64_t bytes = gpu.process_bytes;
    bool present = gpu.process_present != 0;
    for (const auto& [number, bytes_of_files] : footprint.gpu_bytes) {
      auto minor = minors.find(number);
      if (minors.empty() ? number != gpu.index : minor == minors.end() || minor->second != uuid) {
        continue;
      }
      by_files.push_back(uuid);
      present |= bytes_of_files > 0;
      bytes = std::max(bytes, bytes_of_files);
    }
    found.device_bytes += bytes;
    if (present) found.gpus.push_back(uuid);
  }
  if (found.gpus.empty()) found.gpus = std::move(by_files);
  return {};
}

Result<std::vector<DeviceProcess>> CudaControl::FindProcesses(const process::ProcessTree& tree) {
  STASIS_ASSIGN(auto members, Classify(tree));
  std::vector<DeviceProcess> users;
  for (const Member& member : members) {
    if (member.state == ProcessState::kNone) continue;
    DeviceProcess user;
    user.id = member.stat->id;
    user.state = member.state;
    user.no_checkpoint = member.footprint.hip;
    if (!member.footprint.files.empty()) STASIS_TRY(AddMemory(user, member.footprint));
    users.push_back(std::move(user));
  }
  return users;
}

Result<std::vector<DeviceFileHolder>> CudaControl::FindOtherHolders(
    const process::ProcessTree& tree) {
  STASIS_ASSIGN(auto members, Classify(tree));
  std::vector<DeviceFileHolder> holders;
  for (Member& member : members) {
    if (member.state != ProcessState::kNone || member.footprint.files.empty()) continue;
    holders.push_back({member.stat->id, member.stat->comm, std::move(member.footprint.files)});
  }
  return holders;
}

}  // namespace stasis::device::cuda
