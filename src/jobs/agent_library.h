// The agent's library for programs. A program keeps it mapped until it ends, and CRIU needs the
// identical file at a restore. Programs therefore use a permanent copy instead of the
// installation's file, which an upgrade replaces:
//
//   DATA/agents/BUILDID/libstasis-agent.so     mode 0555, readable by every user, never overwritten
#pragma once

#include <string>
#include <vector>

#include "base/paths.h"
#include "base/result.h"

namespace stasis::jobs {

inline constexpr char kAgentLibraryName[] = "libstasis-agent.so";
inline constexpr size_t kMaxAgentLibraryBytes = 16u << 20;

// Returns the library's path for a build id.
std::string AgentLibraryPath(const Paths& paths, const std::string& build_id);

// Copies this installation's library to its path in DATA/agents, unless it exists there, and
// returns the path. Returns kUnimplemented if programs could not load it because there is no
// library, the path has characters special to ld.so, or the file system is noexec. Returns
// kFailedPrecondition if another file is at that path.
Result<std::string> InstallAgentLibrary(const Paths& paths);

// Returns the path of the library to preload into a new program, or an empty string if `without` is
// set or if there is no agent for this processor. Any other problem is an error, because a program
// that starts without the agent is slower to suspend for as long as it runs.
Result<std::string> AgentToPreload(const Paths& paths, bool without);

// Path and build id of this installation's own library.
struct AgentLibrary {
  std::string path;
  std::string build_id;
};
// Fails if the library is missing or has no build id.
Result<AgentLibrary> OwnAgentLibrary();

// Returns true if `path` has the form above. RestoreAgentLibrary writes only to such paths.
bool IsInstalledPlace(const std::string& path, const std::string& build_id);
// Restores a missing library at exactly `path` from `source`, which must have that build id. Keeps
// an existing file.
Status RestoreAgentLibrary(const std::string& path, const std::string& build_id,
                           const std::string& source);

// Returns a value for LD_PRELOAD: `library` (if not empty), then the entries of `current` except
// agents. Two agents in one program would conflict.
std::string PreloadValue(const std::string& current, const std::string& library);

}  // namespace stasis::jobs
