#include "process/search.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "base/file.h"

namespace stasis::process {

Result<std::vector<HostPid>> ListProcesses() {
  STASIS_ASSIGN(auto names, ListDir("/proc"));
  std::vector<HostPid> pids;
  for (const std::string& name : names) {
    if (std::isdigit(static_cast<unsigned char>(name[0])))
      pids.push_back({std::atoi(name.c_str())});
  }
  return pids;
}

std::vector<Stat> ReadLineage(HostPid pid) {
  std::vector<Stat> lineage;
  while (pid.value > 1) {
    auto stat = ReadStat(pid);
    // A pid that was reused during the walk could lead back to an earlier process.
    if (!stat || std::any_of(lineage.begin(), lineage.end(),
                             [&](const Stat& earlier) { return earlier.id.pid == pid; })) {
      break;
    }
    pid = stat->parent;
    lineage.push_back(std::move(*stat));
  }
  return lineage;
}

Result<std::vector<Stat>> FindHolders(const std::set<std::string>& targets) {
  std::vector<Stat> holders;
  if (targets.empty()) return holders;
  STASIS_ASSIGN(auto pids, ListProcesses());
  for (HostPid pid : pids) {
    auto files = ReadOpenFiles(pid);
    if (!files || std::none_of(files->begin(), files->end(), [&](const OpenFile& file) {
          return targets.contains(file.target);
        })) {
      continue;
    }
    if (auto stat = ReadStat(pid)) holders.push_back(std::move(*stat));
  }
  return holders;
}

}  // namespace stasis::process
