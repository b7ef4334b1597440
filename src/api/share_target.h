// Finds the program that shares GPUs and that a call names.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "api/caller.h"
#include "process/proc.h"

namespace stasis::api {

// The programs that share GPUs, of all users.
struct SharedPrograms {
  std::function<bool(const std::string& id)> is_shared;
  // Returns the program to which a process belongs, or an empty string.
  std::function<std::string(process::HostPid)> of_process;
  std::function<std::optional<uid_t>(const std::string& id)> owner_of;
  // Returns the process and its ancestors.
  std::function<std::vector<process::HostPid>(process::HostPid)> lineage_of;
};

// Returns the program that `target` names: one of the jobs of the owners with these keys, or the
// program of a process id. Returns an empty string if there is none, or if the caller may not
// manage it.
std::string FindShared(const Caller& caller, const std::vector<std::string>& keys,
                       const std::string& target, const SharedPrograms& programs);

}  // namespace stasis::api
