// Dumps and restores containers with their runtimes' own commands and CRIU's plugin. Suspend and
// resume do not use this file: they handle a container as the process tree of its first process.
#pragma once

#include <sys/types.h>

#include <string>

#include "api/call.h"
#include "base/result.h"
#include "containers/inspect.h"
#include "process/tree.h"
#include "stasis/v1/stasis.pb.h"

namespace stasis::api {

// Returns true if the source of a restore is a container, an archive of podman (a file), or an
// image of a runc container (a folder).
bool IsContainerSource(const std::string& source);

// `request.target` must be a container.
Result<v1::OperationEvent> DumpContainer(Call& call, const v1::DumpRequest& request);
// IsContainerSource() must be true for `request.source`.
Result<v1::OperationEvent> RestoreContainer(Call& call, const v1::RestoreRequest& request);

// Returns the processes that are in the pid namespace of the tree's root but not in the tree. A
// runtime's `exec` starts such processes in a container.
Result<std::vector<process::Stat>> ProcessesBeside(const process::ProcessTree& tree);

// Refuses a container into which NVIDIA's legacy hook has mounted the driver's files. `init` is its
// first process.
Status CheckHookMounts(process::HostPid init);

// Writes the process id to a file of the caller.
Status WritePidFile(const std::string& path, pid_t pid);

}  // namespace stasis::api
