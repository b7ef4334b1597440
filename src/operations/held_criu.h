// The common parts of a held dump and a held restore (hold.h), whose CRIU another program started.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "criu/criu.h"
#include "gpu_state/services.h"
#include "process/proc.h"

namespace stasis::operations {

// Starts no CRIU, because the plugin's CRIU is already running.
class HeldCriu : public criu::Criu {
 public:
  Status CheckPrivileges() override { return {}; }
  Result<std::string> Find(const std::string&) override { return std::string(); }
  Result<std::string> Version(const std::string&, const Deadline&) override {
    return std::string();
  }
  // Returns kInternal, because a CRIU that restores cannot dump.
  Result<std::unique_ptr<criu::CriuSession>> StartDump(const std::string&, const criu::DumpRequest&,
                                                       bool, const std::map<int, int>&,
                                                       const Deadline&) override;
};

// Returns the threads that must run while the GPU state moves, although CRIU has stopped the
// program: the agents' threads and the driver's restore threads. The result is empty if the tree
// below `root` cannot be read.
std::vector<pid_t> GpuThreads(const gpu_state::Services& services, process::HostPid root);

// Waits until one of two descriptors is readable.
void AwaitEither(int first, int second);

// Returns the error of a request that CRIU's plugin must not send now.
Error UnexpectedRequest();

// Returns the error of a CRIU that has failed by itself. `what` is "dump" or "restore".
Error CriuFailed(const char* what);

}  // namespace stasis::operations
