// Finds the container that a process belongs to, to tell the user what to type instead of a process
// id.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "containers/reference.h"
#include "process/proc.h"

namespace stasis::containers {

// What /proc and the runtimes' state folders say about a process in a container.
struct Identity {
  // "podman container 0123456789ab"; "a container" if nothing names it.
  std::string description;
  // The container as a TARGET; absent for a runtime that Stasis does not call, such as Docker.
  std::optional<Reference> reference;
  std::string runc_root;  // of a reference to runc that is not in runc's usual folder
};

// Returns what the control groups of a process, as in /proc/PID/cgroup, say. Nothing if no runtime
// that Stasis knows has made them.
std::optional<Identity> IdentifyByControlGroup(const std::string& cgroup_text);

// Returns the container of a process. Nothing if the process is in none. `root` is a prefix for
// /proc and /run, for tests.
std::optional<Identity> IdentifyContainer(process::HostPid pid, const std::string& root = "");

// Returns advice for a user who named process `pid` of that container to `verb` ("dump"): the
// command to type.
std::string CommandInstead(const Identity& identity, const std::string& verb);

}  // namespace stasis::containers
