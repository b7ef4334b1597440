// Finds and lists the containers of container runtimes.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "containers/command.h"
#include "containers/reference.h"

namespace stasis::containers {

struct Container {
  Reference reference;
  std::string id;      // as the runtime prints it
  std::string status;  // the runtime's own term in lower case: "running", "paused", "exited"
  pid_t pid = 0;       // of its init process; 0 if the container is not running
  // Set by FindContainer() only:
  std::string oci_runtime = {};  // podman: the OCI runtime that it uses, for example "runc"
  std::string folder = {};       // podman: of its logs; runc: its bundle
  bool restorable = true;        // containerd: created from an image, so `ctr` can restore it
};

// Parse the output of the runtimes' commands. Return kInternal if the output is not valid.
Result<Container> ParsePodmanInspect(const std::string& json, const Reference& reference);
Result<std::vector<Container>> ParsePodmanPs(const std::string& json);
Result<Container> ParseRuncState(const std::string& json, const Reference& reference);
Result<std::vector<Container>> ParseRuncList(const std::string& json);
// Parses the output of `ctr task ls`: a table of TASK, PID and STATUS.
Result<std::vector<Container>> ParseCtrTasks(const std::string& text,
                                             const std::string& containerd_namespace);
// Parses `ctr container info ID` and sets `restorable`.
Status ParseCtrInfo(const std::string& json, Container& container);

// Returns the container; its pid is 0 if it is not running. Returns kNotFound if there is no such
// container, and kUnimplemented if the runtime is not installed.
Result<Container> FindContainer(CommandRunner& runner, const Reference& reference,
                                const Places& places, const Deadline& deadline);
// Returns a running container, or kFailedPrecondition if it is not running.
Result<Container> FindRunning(CommandRunner& runner, const Reference& reference,
                              const Places& places, const Deadline& deadline);

struct Listed {
  std::vector<Container> containers;
  std::vector<std::string> problems;  // one sentence for each runtime that did not answer
};
// Returns the containers of all installed runtimes, including containers that are not running. runc
// lists its containers below `runc_root`. A container that podman runs with runc is listed once.
Listed ListContainers(CommandRunner& runner, const Places& places, const Deadline& deadline);

}  // namespace stasis::containers
