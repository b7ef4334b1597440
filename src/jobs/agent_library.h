// The agent's library as a program gets it. A program has it mapped as long as it lives, and CRIU
// insists on the very same file at a restore; so programs never get the installation's file, which
// an upgrade replaces, but a copy that stays:
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

// Puts this installation's library there, if it is not there yet, and returns the copy's path.
// kUnimplemented when programs could not load it: there is none, a path that ld.so would take
// apart, a file system without execution. kFailedPrecondition: what lies there is another file.
Result<std::string> InstallAgentLibrary(const Paths& paths);

// Path of the library to preload into a program that is started, empty `without`, and where there
// is no agent for this processor. Never left out silently: the program would be slower to suspend
// for as long as it lives.
Result<std::string> AgentToPreload(const Paths& paths, bool without);

// The path of this installation's own library, wherever it was unpacked, and its build id.
struct AgentLibrary {
  std::string path;
  std::string build_id;
};
Result<AgentLibrary> OwnAgentLibrary();

// Is `path` a place of the shape above? Only there a missing library is ever put back.
bool IsInstalledPlace(const std::string& path, const std::string& build_id);
// Puts a missing library back at exactly `path`, from `source`, which must have that build id. A
// file that is there already is left alone.
Status RestoreAgentLibrary(const std::string& path, const std::string& build_id,
                           const std::string& source);

// The value of LD_PRELOAD: `library` (empty: none) before what `current` holds, without any agent
// that `current` names. Two in one program would stand in each other's way.
std::string PreloadValue(const std::string& current, const std::string& library);

}  // namespace stasis::jobs
