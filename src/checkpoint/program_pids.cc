#include "checkpoint/program_pids.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "base/file.h"
#include "process/namespace.h"

namespace stasis::checkpoint {
namespace {

constexpr pid_t kLeastPidMax = 32768;

pid_t PidMax() {
  auto text = ReadFile("/proc/sys/kernel/pid_max", 64);
  return text ? std::max(std::atoi(text->c_str()), kLeastPidMax) : kLeastPidMax;
}

}  // namespace

bool BringsItsPidNamespace(const store::Manifest& manifest) {
  return std::any_of(manifest.processes.begin(), manifest.processes.end(),
                     [](const auto& p) { return p.restored_pid() == 1; });
}

// Returns the middle of the widest gap between pids. The manifest does not list threads; their ids
// usually follow those of their processes.
pid_t PidForCriu(const store::Manifest& manifest) {
  std::vector<pid_t> taken = {1, PidMax()};
  for (const auto& p : manifest.processes) taken.push_back(p.restored_pid());
  std::sort(taken.begin(), taken.end());
  size_t widest = 1;
  for (size_t i = 2; i < taken.size(); ++i) {
    if (taken[i] - taken[i - 1] > taken[widest] - taken[widest - 1]) widest = i;
  }
  return taken[widest - 1] + (taken[widest] - taken[widest - 1]) / 2;
}

Result<process::ProcessId> FindRestored(const store::Process& p, const process::ProcessTree& tree) {
  for (const process::Stat& member : tree.members) {
    auto inner = process::ReadInnerPid(member.id.pid);
    if (inner && *inner == p.restored_pid()) return member.id;
  }
  return Fail(Code::kDataLoss, Domain::kImage, 0,
              fmt::format("the restored program has no process {}", p.restored_pid()));
}

}  // namespace stasis::checkpoint
