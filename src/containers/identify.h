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

// Parses the control groups of a process (/proc/PID/cgroup). Returns nothing if they do not belong
// to a runtime that Stasis knows.
std::optional<Identity> IdentifyByControlGroup(const std::string& cgroup_text);

// Returns the container of a process, or nothing if the process is in none. `root` is a prefix for
// /proc and /run, for tests.
std::optional<Identity> IdentifyContainer(process::HostPid pid, const std::string& root = "");

// Returns advice for a user who gave `verb` (for example "dump") the id of a process in that
// container: the command to type instead.
std::string CommandInstead(const Identity& identity, const std::string& verb);

}  // namespace stasis::containers
