// Finds the container of a process, so that a message can name it as a TARGET instead of the
// process id.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "containers/reference.h"
#include "process/proc.h"

namespace stasis::containers {

// The container of a process, according to /proc and the runtimes' state folders.
struct Identity {
  // "podman container 0123456789ab"; "a container" if the runtime is not known.
  std::string description;
  // The container as a TARGET; absent for a runtime that Stasis does not call, such as Docker.
  std::optional<Reference> reference;
  std::string runc_root;  // for runc: its state folder, if that is not the usual one
};

// Parses the control groups of a process (/proc/PID/cgroup). Returns nullopt if they do not belong
// to a known runtime.
std::optional<Identity> IdentifyByControlGroup(const std::string& cgroup_text);

// Returns the container of a process, or nullopt if it is in none. `root` is a prefix for /proc and
// /run, for tests.
std::optional<Identity> IdentifyContainer(process::HostPid pid, const std::string& root = "");

// Returns the hint for a user who used `verb` (for example "dump") with the id of a process in that
// container: the command to use instead.
std::string CommandInstead(const Identity& identity, const std::string& verb);

}  // namespace stasis::containers
